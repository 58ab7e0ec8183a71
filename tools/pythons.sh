#!/usr/bin/env bash
# With each Python that the package claims and this machine has: compile every module, warnings as errors, and with 3.12
# and 3.13 run the tests that need no torch. The whole tests run with one of them: torch has no CPU build for the others on the registry
# that we use. Environments are kept in .pythons.
set -euo pipefail
cd "$(dirname "$0")/.."

# what is imported here needs no torch; conftest.py does
TORCH_FREE="tests/images/test_decode.py tests/images/test_sources.py tests/images/test_tar.py tests/images/test_thumbnail.py
tests/serve/work/test_batcher.py tests/serve/work/test_caller_limiter.py tests/test_alarm.py
src/unseen/alarm.py src/unseen/errors.py src/unseen/images/decode.py src/unseen/storage"

find_python() {
    for one in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$one" --version >/dev/null 2>&1; then echo "$one"; fi
    done | tail -1
}

make_environment() {  # PYTHON FOLDER
    if [ "$2/ready" -nt constraints.txt ]; then return; fi
    rm -rf "$2"
    "$1" -m venv "$2"
    "$2/bin/pip" install --quiet --constraint constraints.txt fsspec hypothesis jaxtyping numpy pillow pytest rich safetensors typer
    touch "$2/ready"
}

for version in 3.11 3.12 3.13; do
    found=$(find_python $version)
    if [ -z "$found" ]; then
        echo "Python $version: no interpreter here, not tried"
        continue
    fi
    PYTHONPYCACHEPREFIX=$(mktemp -d) "$found" -W error -m compileall -q src examples
    "$found" -W error -c "import sys; sys.path.insert(0, 'src'); sys.dont_write_bytecode = True; import unseen; help(unseen)" >/dev/null
    echo "Python $version: every module compiles, the package imports"
    if [ $version = 3.11 ]; then continue; fi # make test runs every test with it
    make_environment "$found" .pythons/$version
    PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src:tests .pythons/$version/bin/python -m pytest -q --noconftest -p no:cacheprovider $TORCH_FREE
done
