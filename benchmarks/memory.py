"""How much memory the online detector takes: its state to the byte, and working memory that does not follow the stream.

    python benchmarks/memory.py            # a table
    python benchmarks/memory.py --json     # one JSON object per line

Each stream runs in a process of its own, because peak memory is a property of a process.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Iterator
from functools import partial

from unseen.detectors import Online
from unseen_bench.run import command, markdown_table
from unseen_bench.run.jsonl import Row
from unseen_bench.run.synthetic import label_space, stream

STEP = 1_000  # samples made at a time: the stream itself must not be what is measured


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    arguments = command.parse(parser)
    work = partial(measure, known=arguments.known, negatives=arguments.negatives)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        command.show(processes.imap(work, arguments.samples), arguments, table)


def measure(samples: int, *, known: int, negatives: int) -> Row:
    labels = label_space(known, negatives, 512)
    online = Online(labels)
    state = online.start()
    before = peak()
    for part in range(0, samples, STEP):
        _, state = online.observe(state, stream(labels, min(STEP, samples - part)))
    return {
        "samples": samples,
        "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in state),
        "expected_state_bytes": 4 * labels.dim * (known + negatives) + 2 * 8,
        "working_bytes": peak() - before,
    }


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("samples", "state, bytes", "d (K + L) floats and two counters, bytes", "working memory, MiB")
    fields = ("samples", "state_bytes", "expected_state_bytes")
    lines = ((*(f"{row[name]:,}" for name in fields), f"{row['working_bytes'] / 2**20:,.0f}") for row in rows)
    return markdown_table(heads, lines)


if __name__ == "__main__":
    main()
