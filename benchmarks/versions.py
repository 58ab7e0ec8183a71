"""How much faster or slower the recommended detector is than that of another checkout, in alternation.

    git worktree add --detach ../unseen-0.1 bf883cb     # the last commit of 0.1
    python benchmarks/versions.py ../unseen-0.1         # a table; --json for one object per line

Each time is that of a process of its own with one thread: processor time, not time on the wall, so that other work on
the machine matters less; the least of a few rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from unseen_bench.run import command, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row

REPOSITORY = Path(__file__).parents[1]
SIZES = ((10, 2_000), (200, 742), (1_000, 10_000))
WORK = """
import json, resource, sys, time, torch
from torch.nn.functional import normalize
torch.set_num_threads(1)
known, negatives, samples, singles = map(int, sys.argv[1:])
from unseen import LabelSpace, Session
torch.manual_seed(0)
anchors = normalize(torch.randn(known + negatives, 512), dim=-1)
names = tuple(f"name {i}" for i in range(known + negatives))
labels = LabelSpace(names[:known], names[known:], anchors[:known], anchors[known:])
is_known, place = torch.rand(samples) < 5 / 6, torch.rand(samples)
picked = torch.where(is_known, place * known, known + place * negatives).long()
noise, strength = normalize(torch.randn(samples, 512), dim=-1), 0.1 + 0.25 * torch.rand(samples, 1)
z = normalize(strength * anchors[picked] + noise, dim=-1)
before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Python, torch, text and features
def each(work, count):
    start = time.process_time()
    work()
    return (time.process_time() - start) / count
import unseen.detectors as detectors
detector = detectors.make("default", labels)
session = Session(detector)
found = {"detector, one call": each(lambda: detector.observe(detector.start(), z), samples)}
found["Session, batches of 512"] = each(lambda: [session.observe(part) for part in z.split(512)], samples)
found["Session, one by one"] = each(lambda: [session.observe(row) for row in z[:singles].split(1)], singles)
found["Session, blocks of 8"] = each(lambda: [session.observe(part) for part in z[:singles].split(8)], singles)
found["peak memory"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps(found))
"""


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--samples", type=int, default=16_384)
    parser.add_argument("--singles", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments, table)


def measure(arguments: Arguments) -> Iterator[Row]:
    for known, negatives in SIZES:
        sizes = (known, negatives, arguments.samples, arguments.singles)
        pairs = [(times(arguments.old, sizes), times(REPOSITORY, sizes)) for _ in range(arguments.rounds)]
        for case in pairs[0][0]:
            old, new = (min(pair[side][case] for pair in pairs) for side in (0, 1))
            yield {"case": case, "known": known, "negatives": negatives, "old": old, "new": new, "ratio": new / old}


def times(checkout: Path, sizes: tuple[int, ...]) -> dict[str, float]:
    """The processor seconds per sample of each case, measured with the package of a checkout."""
    surroundings = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    command_line = [sys.executable, "-c", WORK, *map(str, sizes)]
    done = subprocess.run(command_line, env=surroundings, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: list[Row]) -> Iterator[str]:
    heads = ("what", "names + negatives", "old", "new", "ratio")
    return markdown_table(heads, map(cells, rows))


def cells(row: Row) -> tuple[str, ...]:
    size = f"{row['known']:,} + {row['negatives']:,}"
    unit, times = ("MB", 1e-6) if row["case"] == "peak memory" else ("µs per sample", 1e6)
    old, new = (f"{times * row[version]:,.0f} {unit}" for version in ("old", "new"))
    return row["case"], size, old, new, f"{row['ratio']:.2f}"


if __name__ == "__main__":
    main()
