"""How much memory and disk a stream takes, by detector and size of its label space.

python benchmarks/service_capacity.py            # a table
python benchmarks/service_capacity.py --json     # one JSON object per line
"""

from __future__ import annotations

from collections.abc import Iterator

from unseen.serve.settings import Durability, Limits
from unseen.serve.stream.config import StreamConfig
from unseen.serve.stream.disk import expected_bytes
from unseen.serve.stream.memory import state_bytes
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.synthetic import label_space

SPACES = ((10, 1_000), (100, 10_000), (1_000, 10_000))
PARTS = ("space", "state", "disk")  # in bytes
DETECTORS = ("mcm", "online", "pooled")


def main() -> None:
    arguments = command.parse(command.parser(__doc__))
    command.show(measured(), arguments, table)


def measured() -> Iterator[Row]:
    for known, negative in SPACES:
        labels = label_space(known, negative, 512)
        space = (known + negative) * 512 * 4
        for detector in DETECTORS:
            state = state_bytes(StreamConfig("", "", "", detector), labels)
            disk = expected_bytes(labels, state, Durability())
            streams = min(Limits().memory_each // max(1, state), Limits().disk_each // disk, Limits().streams)
            yield {"names": f"{known:,} + {negative:,}", "detector": detector, "space": space, "state": state} | {
                "disk": disk,
                "streams": streams,
            }


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("names, width 512", "detector", "label space MB", "state MB", "disk MB at most", "streams of one owner")
    cells = ((row["names"], row["detector"], *(f"{row[part] / 1e6:,.1f}" for part in PARTS)) for row in rows)
    yield from markdown_table(heads, ((*cell, f"{row['streams']:,}") for cell, row in zip(cells, rows, strict=True)))


if __name__ == "__main__":
    main()
