"""A few labelled examples per class: every method that may see them, by their number, on stored CLIP features.

    python benchmarks/examples.py FOLDER                                   # tin-near-0, imagenet200; minutes
    python benchmarks/examples.py FOLDER --suites tin-near-0 tin-near-2 --shots 5 --methods pooled neglabel --seeds 3

Examples of a draw are the same for every method and left out of every stream. `zero-shot` is the recommended detector
from names alone, on the same streams; `pooled` has the examples, some of which teach nothing and set the threshold, as
everywhere. `+` after a frozen method: its label space is moved by the examples. A seed is one draw of examples and one
order of arrival. Figures are in percent.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from stored_suites import SUITES, load_suite, suites_parser
from unseen import LabelSpace, detectors
from unseen.detectors import Detector
from unseen.labels import Examples, with_examples
from unseen_bench.evaluate import evaluate
from unseen_bench.methods import fewshot
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

SHOTS = (1, 2, 4, 8, 16)
FEWEST_LEFT = 2  # images of each known class that stay for the stream
METHODS = ("zero-shot", "pooled", "neglabel", "neglabel+", "mcm", "mcm+", *fewshot.REGISTRY)
FIGURES = {
    "margin_auroc": "AUROC",
    "margin_fpr95_id": "FPR95",
    "accuracy": "names",
    "kept": "kept",
    "rejected": "rejected",
}


def main() -> None:
    parser = suites_parser(__doc__, seeds=3, chosen=["tin-near-0", "imagenet200"])
    parser.add_argument("--shots", nargs="+", type=int, default=list(SHOTS), help="examples of each class")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, tables)


class Drawn(NamedTuple):
    """The names of a suite, some examples of each, and the samples that are left for streams."""

    space: LabelSpace
    examples: Examples
    rest: Trial


def cases(arguments: Arguments) -> Iterator[Case]:
    for suite in arguments.suites:
        for shots in arguments.shots:
            for seed in command.seeds(arguments):
                for name in SUITES[suite]:
                    for method in arguments.methods:
                        key = {"suite": suite, "set": name, "shots": shots, "seed": seed, "method": method}
                        key["most"] = arguments.most
                        yield Case(key, functools.partial(judge, arguments.folder, **key))


def judge(folder: Path, *, suite: str, set: str, method: str, **source: Any) -> Row:
    """The figures of one method on one stream; none where a class has too few images."""
    drawn = draw(folder, suite, **source)
    if drawn is None:
        return {}
    wanted = torch.tensor([0, drawn.rest.sources.index(set)])
    rows = torch.isin(drawn.rest.source, wanted).nonzero().squeeze(1)
    trial = drawn.rest[rows].ordered("shuffled", source["seed"])
    found = evaluate(build(method, folder, suite, **source), trial).metrics
    return {name: 100 * found[name] for name in FIGURES}


@functools.cache
def draw(folder: Path, suite: str, *, shots: int, seed: int, most: int) -> Drawn | None:
    """The examples of each known class, and everything else."""
    loaded = load_suite(suite, folder, most)
    pool, generator = loaded.pool, torch.Generator().manual_seed(seed)
    names = torch.randperm(len(pool.label[pool.is_id].unique()), generator=generator)
    chosen = []
    for name in names.tolist():
        members = (pool.label == name).nonzero().squeeze(1)
        if len(members) < shots + FEWEST_LEFT:
            return None
        chosen.append(members[torch.randperm(len(members), generator=generator)[:shots]])
    rows = torch.cat(chosen)
    left = torch.ones(len(pool.z), dtype=torch.bool)
    left[rows] = False
    return Drawn(loaded.labels, Examples(pool.z[rows], pool.label[rows]), pool[left.nonzero().squeeze(1)])


@functools.cache
def build(method: str, folder: Path, suite: str, **source: Any) -> Detector:
    """A method that has seen what it may see of a draw; an unknown set changes nothing in it."""
    drawn = draw(folder, suite, **source)
    assert drawn is not None
    if method in fewshot.REGISTRY:
        return fewshot.make(method, drawn.space, drawn.examples, seed=source["seed"])
    if method == "pooled" or method.endswith("+"):
        return detectors.make(method.removesuffix("+"), with_examples(drawn.space, drawn.examples))
    return detectors.make("pooled" if method == "zero-shot" else method, drawn.space)


def tables(rows: list[Row]) -> Iterator[str]:
    """Yield two tables per suite, means over sets and draws by the number of examples: methods, and what is gained."""
    for (suite,), streams in grouped((row for row in rows if "kept" in row), "suite").items():
        shots = sorted({row["shots"] for row in streams})
        heads = [f"{count} of each class" for count in shots]
        by_shots = grouped(streams, "method", "shots")
        methods = dict.fromkeys(row["method"] for row in streams)
        yield f"\n{suite} ({', '.join(SUITES[suite])}): {' / '.join(FIGURES.values())}\n"
        yield from markdown_table(
            ["needs examples", *heads], ([m, *(cell(by_shots[m, count]) for count in shots)] for m in methods)
        )
        if {"zero-shot", "pooled"} <= methods.keys():
            yield "\npooled - zero-shot: mean / worst of all sets and draws\n"
            yield from markdown_table(["gain", *heads], gains(streams))


def cell(rows: list[Row]) -> str:
    return " / ".join(f"{mean(rows, name):.1f}" for name in FIGURES)


def gains(rows: list[Row]) -> Iterator[list[str]]:
    """Yield for AUROC and names how much examples gain, by their number."""
    by_method = [{row["method"]: row for row in stream} for stream in grouped(rows, "shots", "set", "seed").values()]
    for figure in ("margin_auroc", "accuracy"):
        found: dict[int, list[float]] = {}
        for stream in by_method:
            gain = stream["pooled"][figure] - stream["zero-shot"][figure]
            found.setdefault(stream["pooled"]["shots"], []).append(gain)
        cells = (f"{fmean(some):+.1f} / {min(some):+.1f}" for _, some in sorted(found.items()))
        yield [FIGURES[figure], *cells]


if __name__ == "__main__":
    main()
