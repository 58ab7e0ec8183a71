"""A few labelled examples per class: every method that may see them, by their number, on stored CLIP features.

    python benchmarks/examples.py FOLDER                                   # tin-near-0, imagenet200; minutes
    python benchmarks/examples.py FOLDER --suites tin-near-0 tin-near-2 --shots 5 --methods pooled neglabel --seeds 3

Examples of a draw are the same for every method and left out of every stream. `zero-shot` is the recommended detector
from names alone, on the same streams; `pooled` has the examples, of which one of each class with four or more teaches
nothing and sets the threshold, as everywhere; with `all-teach` none is spared, and the stream sets the threshold. `+`
after a frozen method: its label space is moved by the examples. A seed is one draw of examples and one order of
arrival. Figures are in percent.
"""

import functools
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stored_suites import NEAR, OFFLINE, SETS, load_suite
from unseen import LabelSpace, detectors
from unseen.detectors import Detector
from unseen.labels import Examples, with_examples
from unseen_bench.evaluate import evaluate
from unseen_bench.methods import fewshot
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

SUITES = {**SETS, **NEAR, **OFFLINE}
SHOTS = (1, 2, 4, 8, 16)
FEWEST_LEFT = 2  # images of each known class that stay for the stream
OWN = ("zero-shot", "pooled", "all-teach")
METHODS = (*OWN, "neglabel", "neglabel+", "mcm", "mcm+", *fewshot.REGISTRY)
FIGURES = {"margin_auroc": "AUROC", "margin_fpr95_id": "FPR95", "accuracy": "names"}


def main() -> None:
    arguments = command.parse(arguments_parser())
    command.run_and_print(cases(arguments), arguments, tables)


def arguments_parser() -> ArgumentParser:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=3)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=["tin-near-0", "imagenet200"])
    parser.add_argument("--sets", nargs="+", help="unknown sets (default: all of a suite)")
    parser.add_argument("--shots", nargs="+", type=int, default=list(SHOTS), help="examples of each class")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--most", type=int, default=3000, help="images of each set, drawn at random (3000)")
    return parser


class Source(NamedTuple):
    """Where examples are drawn from, and how."""

    suite: str
    folder: Path
    shots: int
    seed: int
    most: int


class Drawn(NamedTuple):
    """Examples, and the samples that are left for streams."""

    examples: Examples
    rest: Trial


def cases(arguments: Arguments) -> Iterator[Case]:
    for suite in arguments.suites:
        for shots in arguments.shots:
            for seed in command.seeds(arguments):
                for name in SUITES[suite]:
                    if arguments.sets and name not in arguments.sets:
                        continue
                    for method in arguments.methods:
                        key = {"suite": suite, "set": name, "shots": shots, "seed": seed, "method": method}
                        key["most"] = arguments.most
                        yield Case(key, functools.partial(judge, arguments.folder, **key))


def judge(folder: Path, *, suite: str, set: str, method: str, **options: Any) -> Row:
    """The figures of one method on one stream; none where a class has too few images."""
    source = Source(suite, folder, **options)
    drawn = draw(source)
    if drawn is None:
        return {}
    wanted = torch.tensor([0, drawn.rest.sources.index(set)])
    trial = drawn.rest[torch.isin(drawn.rest.source, wanted).nonzero().squeeze(1)].ordered("shuffled", source.seed)
    found = evaluate(build(method, source), trial).metrics
    return {name: 100 * found[name] for name in (*FIGURES, "kept", "rejected")}


@functools.cache
def draw(source: Source) -> Drawn | None:
    """The examples of each known class, and everything else."""
    pool = load_suite(source.suite, source.folder, source.most).pool
    generator = torch.Generator().manual_seed(source.seed)
    names = torch.randperm(len(pool.label[pool.is_id].unique()), generator=generator)
    chosen = []
    for name in names.tolist():
        members = (pool.label == name).nonzero().squeeze(1)
        if len(members) < source.shots + FEWEST_LEFT:
            return None
        chosen.append(members[torch.randperm(len(members), generator=generator)[: source.shots]])
    rows = torch.cat(chosen)
    left = torch.ones(len(pool.z), dtype=torch.bool)
    left[rows] = False
    return Drawn(Examples(pool.z[rows], pool.label[rows]), pool[left.nonzero().squeeze(1)])


@functools.cache
def moved(source: Source, *, all_teach: bool) -> LabelSpace:
    drawn, space = draw(source), load_suite(source.suite, source.folder, source.most).labels
    assert drawn is not None
    found = with_examples(space, drawn.examples)
    return replace(found, spared=None) if all_teach else found


@functools.cache
def build(method: str, source: Source) -> Detector:
    space = load_suite(source.suite, source.folder, source.most).labels
    if method in fewshot.REGISTRY:
        drawn = draw(source)
        assert drawn is not None
        return fewshot.make(method, space, drawn.examples, seed=source.seed)
    if method == "zero-shot":
        return detectors.make(detectors.DEFAULT, space)
    if method in ("pooled", "all-teach"):
        return detectors.make(detectors.DEFAULT, moved(source, all_teach=method == "all-teach"))
    used = moved(source, all_teach=True) if method.endswith("+") else space
    return detectors.make(method.removesuffix("+"), used)


def tables(rows: list[Row]) -> Iterator[str]:
    """Yield tables per suite, means over sets and draws: methods, verdicts, and what is gained."""
    measured = [row for row in rows if "margin_auroc" in row]
    for (suite,), streams in grouped(measured, "suite").items():
        sets = ", ".join(dict.fromkeys(row["set"] for row in streams))
        yield f"\n{suite} ({sets}): {' / '.join(FIGURES.values())}\n"
        yield from by_shots("needs examples", streams, FIGURES)
        own = [row for row in streams if row["method"] in OWN]
        yield "\nknown kept / unknown rejected at a recall of 95 %\n"
        yield from by_shots("threshold", own, ("kept", "rejected"))
        yield "\npooled - zero-shot: mean / worst of all sets and draws\n"
        yield from markdown_table(["gain", *columns(own)], gains(own))


def columns(rows: list[Row]) -> list[str]:
    return [f"{shots} of each class" for shots in sorted({row["shots"] for row in rows})]


def by_shots(head: str, rows: list[Row], names: Iterable[str]) -> Iterator[str]:
    """Yield a table of some figures: a row per method, a column per number of examples."""
    shots = sorted({row["shots"] for row in rows})
    lines = []
    for (method,), found in grouped(rows, "method").items():
        lines.append([str(method), *(cell([row for row in found if row["shots"] == count], names) for count in shots)])
    yield from markdown_table([head, *columns(rows)], lines)


def gains(rows: list[Row]) -> list[list[str]]:
    """For AUROC and names how much examples gain, by their number: on average, and at worst."""
    streams = grouped(rows, "shots", "set", "seed").values()
    pairs = [{row["method"]: row for row in stream} for stream in streams]
    pairs = [pair for pair in pairs if {"zero-shot", "pooled"} <= pair.keys()]
    lines = []
    for figure in ("margin_auroc", "accuracy"):
        found: dict[int, list[float]] = {}
        for pair in pairs:
            gain = pair["pooled"][figure] - pair["zero-shot"][figure]
            found.setdefault(pair["pooled"]["shots"], []).append(gain)
        cells = (f"{sum(found[n]) / len(found[n]):+.1f} / {min(found[n]):+.1f}" for n in sorted(found))
        lines.append([FIGURES[figure], *cells])
    return lines


def cell(rows: list[Row], names: Iterable[str]) -> str:
    return " / ".join(f"{mean(rows, name):.1f}" for name in names) if rows else ""


if __name__ == "__main__":
    main()
