"""How much memory the online detector takes: its state to the byte, and working memory that does not follow the stream.

    python benchmarks/memory.py            # a table
    python benchmarks/memory.py --json     # one JSON object per line

Each stream runs in a process of its own, because peak memory is a property of a process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

import torch

from speed import label_space, stream
from unseen.detectors import Online


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(arguments.one, arguments.known, arguments.negatives)))
        return
    for samples in arguments.samples:
        command = [sys.executable, __file__, "--one", str(samples)]
        command += ["--known", str(arguments.known), "--negatives", str(arguments.negatives)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(json.dumps(row) if arguments.json else line(row), flush=True)


def measured(samples: int, known: int, negatives: int) -> dict[str, int]:
    labels = label_space(known, negatives, 512)
    online = Online(labels)
    state = online.start()
    before = peak()
    for part in range(0, samples, 1_000):  # made as it goes: the stream itself must not be what is measured
        _, state = online.observe(state, stream(labels, min(1_000, samples - part)))
    return {
        "samples": samples,
        "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in state),
        "expected_state_bytes": 4 * labels.dim * (known + negatives) + 2 * 8,
        "working_bytes": peak() - before,
    }


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def line(row: dict[str, int]) -> str:
    return (
        f"{row['samples']:>9,} samples: state {row['state_bytes']:,} bytes (d (K + L) floats and two counters: "
        f"{row['expected_state_bytes']:,}), working memory {row['working_bytes'] / 2**20:,.0f} MiB"
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
