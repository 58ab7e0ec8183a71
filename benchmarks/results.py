"""Every table of rankings that docs/results.md chooses from: `make results`, minutes on two idle cores.

    python benchmarks/results.py ../shared/clip-b16 [--out results] [--suites imagenet200]

Rows are kept in --out as soon as they are computed: a call that was stopped goes on where it stopped, and a second call
computes only what is new. results.md in --out is written after every suite. Every
training-free method has five seeds; the suite with 10,000 negatives, where a sample costs ten times as much, has two,
and the upper bound on long streams three. The tables say how many each line has. The CIFAR suites need the
offline text tower; without it they are left out, and the page says so. Verdicts are printed by benchmarks/verdicts.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from unseen.errors import EncoderError, MissingExtra
from unseen_bench import suites
from unseen_bench.exhibits import tables
from unseen_bench.exhibits.tables import verdict_tables
from unseen_bench.oracles import PLAIN
from unseen_bench.run import (
    ORACLES,
    ResultFolder,
    Row,
    Run,
    code_version,
    command,
    default_detectors,
    list_runs,
    markdown_table,
    run_all,
)
from unseen_bench.run.paper import methods_of

LEARNING = tuple(name for name in default_detectors() if name in ("pooled", "online", "oracle-online"))
FREE = tuple(name for name in default_detectors() if name not in ORACLES)
ONE_GROUP = "neglabel groups=1"  # Eq. 3 as the online paper prints it: an ablation


class Part(NamedTuple):
    """Some runs of one suite."""

    suite: str
    detectors: tuple[str, ...]
    seeds: int
    orders: tuple[str, ...] = ("shuffled",)

    def runs(self, suite: suites.Suite) -> list[Run]:
        return list_runs(suite, names=self.detectors, orders=self.orders, seeds=self.seeds)


PLAN = (
    Part("imagenet200", (*FREE, ONE_GROUP, *PLAIN), 5),
    Part("imagenet200", methods_of(["*fitted"]), 1),
    Part("imagenet200", LEARNING, 3, ("id_first", "ood_first", "temporal")),
    Part("imagenet200-lowres", (*FREE, ONE_GROUP, *PLAIN), 5),
    Part("imagenet200-lowres", methods_of(["*fitted"]), 1),
    Part("imagenet1k-surrogate", (*FREE, ONE_GROUP, *PLAIN), 2),
    Part("cifar10", FREE, 5),
    Part("cifar10", (ONE_GROUP, *PLAIN), 3),
    Part("cifar100", FREE, 5),
    Part("cifar100", (ONE_GROUP, *PLAIN), 3),
)

HEAD = """# Results

AUROC and FPR95 are percentages; the deviation over seeds stands in brackets, and a line without one is a method that
never learns, whose scores depend on no order. µs is the time per sample on one core, state what the method keeps
besides the label space. `*` marks sets known to contain images of known classes. docs/results.md says what the suites
are and what may be compared.
"""


def main() -> None:
    parser = command.parser(__doc__, features=True)
    parser.add_argument("--out", type=Path, default=Path("results"), help="where rows and pages are kept")
    parser.add_argument("--suites", nargs="+", default=list(dict.fromkeys(part.suite for part in PLAN)))
    parser.add_argument("--workers", type=int, help="processes; as many as cores if not given")
    arguments = command.parse(parser)
    text = f"{HEAD}\nunseen {code_version()}, torch {torch.__version__}.\n"
    for name in arguments.suites:
        text += suite_section(name, arguments.folder, arguments.out, arguments.workers)
        (arguments.out / "results.md").write_text(text)


def suite_section(name: str, features: Path, out: Path, workers: int | None) -> str:
    """One suite's part of the page, or that it cannot be read here."""
    try:
        suite = suites.load(name, features)
    except (EncoderError, MissingExtra) as error:
        return f"\n## {name}\n\nLeft out: {error}\n"
    runs = list(dict.fromkeys(run for part in PLAN if part.suite == name for run in part.runs(suite)))
    rows = list[Row]()
    for _, row in run_all(suite, runs, ResultFolder(out, name), workers=workers):
        rows.append(row)
        command.progress(len(rows), len(runs))
    counts = f"{len(suite.labels.names):,} names, {len(suite.labels.negatives):,} negatives"
    text = f"\n## {suite.name}\n\n{suite.about}. {counts}.\n"
    for judged in verdict_tables(rows):
        text += f"\n### {judged.title}\n\n" + "\n".join(markdown_table(judged.heads, judged.lines)) + "\n"
    for table in tables.tables(rows, suite):
        text += f"\n### {table.title}\n\n{table.grid(suite.unclean).markdown()}\n"
    return text


if __name__ == "__main__":
    main()
