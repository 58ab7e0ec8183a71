#!/usr/bin/env bash
# Everything that needs a GPU, most important first: build, tests, speed, memory checker, encoder.
#
#   benchmarks/on_gpu.sh OUT [SECONDS] [STEP...]
#
# OUT      folder for log.txt, results.jsonl (all measurements), tests.txt, race.txt, memory.txt and errors.txt
# SECONDS  for all of it (480); each step has a limit of its own, so one that hangs does not eat the rest
# STEP     some of: build tests users speed race encode profile memory precision (all, in this order), jpeg
#
# Needs Python with torch for CUDA, nvcc, and for the tests pytest; PYTHON names another interpreter.
# TOWERS and BATCHES choose what `encode` tries: see python benchmarks/gpu_encode.py --help.
set -u
out=$(mkdir -p "${1:?a folder for the results}" && cd "$1" && pwd)
total=${2:-480}
shift
[ $# -gt 0 ] && shift
steps=${*:-build tests users speed race encode profile memory precision}
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="src:benchmarks${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export python=${PYTHON:-python3}
features=${UNSEEN_FEATURES:-../shared/clip-b16}

step() { # name, limit in seconds, file, lines to show, command
    local name=$1 limit=$2 file=$out/$3 lines=$4 left=$((total - SECONDS)) begun=$SECONDS status old errors
    shift 4
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -lt 5 ]; then
        echo "== $name: no time left"
        return
    fi
    touch "$file"
    old=$(wc -l <"$file")
    echo "== $name" >>"$out/errors.txt"
    errors=$(wc -l <"$out/errors.txt")
    timeout -k 5 "$limit" "$@" >>"$file" 2>>"$out/errors.txt"
    status=$?
    echo "== $name: exit $status after $((SECONDS - begun)) s (limit $limit)"
    tail -n "+$((old + 1))" "$file" | tail -n "$lines"
    [ $status -ne 0 ] && tail -n "+$((errors + 1))" "$out/errors.txt" | tail -n 20
    return $status
}

measure() { # name, limit, file in benchmarks/, options
    local name=$1 limit=$2 file=$3
    shift 3
    step "$name" "$limit" results.jsonl 40 "$python" "benchmarks/$file" --untested --json "$@"
}

run_build() {
    nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader
    step build 90 tests.txt 5 "$python" -c 'import torch
from unseen.scan.cuda import build
print(torch.__version__, build.library(torch.cuda.get_device_capability()))'
}
run_tests() {
    if "$python" -c 'import pytest' 2>>"$out/errors.txt"; then
        step tests 120 tests.txt 60 "$python" -m pytest -q -s -m gpu -p no:cacheprovider --durations=5 \
            tests/scan/test_cuda.py tests/detectors/pooled/test_gpu.py tests/detectors/test_on_gpu.py \
            tests/encoders/gpu tests/features/test_encoding.py
    else
        echo '== tests: not run, pytest is missing'
        return 1
    fi
}
run_users() { measure users 120 gpu.py --only pooled others million; }
run_speed() { measure speed 120 gpu.py --only ceilings streams latency many; }
run_jpeg() { measure jpeg 200 gpu_encode.py --only jpeg --batches 512; }
run_encode() { measure encode 150 gpu_encode.py --only encode ${TOWERS:+--towers $TOWERS} ${BATCHES:+--batches $BATCHES}; }
run_profile() { measure profile 40 gpu_profile.py; }
run_race() {
    local filter=(--kernel-name kns=learn)
    compute-sanitizer --help 2>/dev/null | grep -q -- --kernel-name || filter=()
    step race 60 race.txt 25 compute-sanitizer --tool racecheck "${filter[@]}" --racecheck-report all --print-limit 30 \
        "$python" benchmarks/sanitize.py
}
run_memory() {
    step memory 60 memory.txt 10 compute-sanitizer --tool memcheck --print-limit 20 "$python" benchmarks/sanitize.py
}
run_precision() {
    if [ -d "$features" ]; then
        measure precision 60 gpu.py --only precision --features "$features"
    else
        echo '== precision: not run, set UNSEEN_FEATURES to the folder of features'
    fi
}

everything() {
    local name failed=0
    for name in $steps; do "run_$name" || failed=1; done
    echo "== all: $SECONDS s"
    return $failed
}

set -o pipefail
everything 2>&1 | tee "$out/log.txt"
