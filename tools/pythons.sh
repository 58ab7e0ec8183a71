#!/usr/bin/env bash
# Compile every module with each Python that the package claims and this machine has; warnings are errors.
# The whole tests run with one of them: torch has no CPU build for the others on the registry that we use.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in 3.11 3.12 3.13; do
    found=""
    for one in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
        if "$one" --version >/dev/null 2>&1; then found=$one; fi
    done
    if [ -z "$found" ]; then
        echo "Python $version: no interpreter here, not tried"
        continue
    fi
    PYTHONPYCACHEPREFIX=$(mktemp -d) "$found" -W error -m compileall -q src examples
    "$found" -W error -c "import sys; sys.path.insert(0, 'src'); sys.dont_write_bytecode = True; import unseen; help(unseen)" >/dev/null
    echo "Python $version: every module compiles, the package imports"
done
