"""What a user gets: verdicts, margins and confidences of a session, on stored CLIP features, in every arrival order.

    python benchmarks/verdicts.py FOLDER                                     # every suite, set and order; minutes
    python benchmarks/verdicts.py FOLDER --suites imagenet200 --orders shuffled id_first --seeds 3
    python benchmarks/verdicts.py FOLDER --rows rows.jsonl --json            # one object per stream; resumes
    python benchmarks/verdicts.py FOLDER --rows rows.jsonl --page page.html  # also tables and reliability plots

AUROC, FPR95 and shares are in percent; `ece` is a fraction. `margin_*` judges the margin, which a verdict carries,
`score_*` the raw score. `best_threshold` is the balanced accuracy of the best single threshold on the margins;
`frozen_balanced` and `frozen_auroc` are the best of the frozen methods, the first at its own true 95 % threshold. In
the order `temporal` each stage of each rotation of the sets is a row, judged by its own samples. Sets are thinned to
--most images. CIFAR suites need the offline text tower (`unseen models fetch offline`); without it they are left out.
"""

import functools
import sys
from argparse import ArgumentParser
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import verdict_goals
from stored_suites import NEAR, OFFLINE, SETS, load_suite
from unseen import LabelSpace, Session, detectors
from unseen.errors import EncoderError, MissingExtra
from unseen.threshold import Adaptive, calibrated
from unseen_bench import orders as arrival
from unseen_bench.evaluate import EARLY, Evaluation, evaluate, sides
from unseen_bench.exhibits import verdicts as report
from unseen_bench.metrics import auroc, balanced_at_recall
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

SUITES = {**SETS, **NEAR, **OFFLINE}
FROZEN: dict[str, dict[str, Any]] = {"mcm": {}, "neglabel": {"groups": 100}, "csp": {}, "dnm": {}, "eoe": {}}
Scores = dict[str, Float[Tensor, " n"]]  # of each frozen method
ONE_KIND = ("id_only", "ood_only", "mixture")  # no AUROC, or two other orders have its name
ORDERS = tuple(kind for kind in arrival.ORDERS if kind not in ONE_KIND)
DEFAULT_ORDERS = tuple(kind for kind in ORDERS if kind != "drift")  # temporal asks the same
PHOTOS = (20, 50, 100, 200)  # known images that an oracle draws to set a threshold
PERCENT = {  # field of a row -> metric of an evaluation
    "margin_auroc": "margin_auroc",
    "margin_fpr95": "margin_fpr95_id",
    "margin_fpr95_ood": "margin_fpr95_ood",
    "score_auroc": "auroc",
    "score_fpr95": "fpr95_id",
    "kept": "kept",
    "rejected": "rejected",
    "balanced": "balanced",
    "best_threshold": "best_threshold",
    "balanced_at_95": "balanced_at_95",
}


def main() -> None:
    arguments = command.parse(arguments_parser())
    command.run_and_print(cases(arguments), arguments, functools.partial(tables, page=arguments.page))


def arguments_parser() -> ArgumentParser:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=1)
    parser.add_argument("--suites", nargs="+", choices=SUITES, help="default: all that can be read")
    parser.add_argument("--sets", nargs="+", help="unknown sets (default: all of a suite)")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(DEFAULT_ORDERS))
    parser.add_argument("--most", type=int, default=3000, help="images of each set, drawn at random (3000)")
    parser.add_argument("--detector", default=detectors.DEFAULT, choices=sorted(detectors.names()))
    parser.add_argument("--recall", type=float, default=0.95, help="wanted share of known images (0.95)")
    parser.add_argument("--page", type=Path, help="HTML file to write; needs matplotlib")
    return parser


class Stream(NamedTuple):
    """Which stream of a suite: the unknown sets (several only in a shift), the order and the seed."""

    suite: str
    sets: tuple[str, ...]
    order: str
    seed: int


def cases(arguments: Arguments) -> Iterator[Case]:
    for suite in arguments.suites or readable(arguments.folder):
        sets = [name for name in SUITES[suite] if not arguments.sets or name in arguments.sets]
        for order in arguments.orders:
            for seed in command.seeds(arguments):
                for rotation in rotations(sets, order):
                    for name in rotation:
                        yield case(arguments, Stream(suite, rotation, order, seed), name)


def case(arguments: Arguments, stream: Stream, name: str) -> Case:
    key = {"suite": stream.suite, "set": name, "order": stream.order, "seed": stream.seed, "sets": list(stream.sets)}
    options = {"detector": arguments.detector, "recall": arguments.recall, "most": arguments.most}
    return Case(key | options, functools.partial(judge, stream, name, arguments.folder, **options))


def rotations(sets: list[str], order: str) -> list[tuple[str, ...]]:
    """The sets of each stream: one alone, or in a shift all of them, each first in one stream."""
    if order not in ("temporal", "drift"):
        return [(name,) for name in sets]
    return [tuple(sets[start:] + sets[:start]) for start in range(len(sets))] if len(sets) > 1 else []


def readable(folder: Path) -> list[str]:
    """The suites whose names and negatives can be had here."""
    found = [*SETS, *NEAR]
    for name in OFFLINE:
        try:
            load_suite(name, folder, 1)
            found.append(name)
        except (EncoderError, MissingExtra) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def judge(stream: Stream, name: str, folder: Path, *, detector: str, recall: float, most: int) -> Row:
    """Every figure of one stream, or of one stage of it."""
    evaluation, rows = run(stream, folder, detector, recall, most)
    anchors = load_suite(stream.suite, folder, most).labels.id_anchors
    scores = {method: score[rows] for method, score in suite_scores(stream.suite, folder, most).items()}
    return verdict_figures(evaluation, name, anchors) | frozen_figures(evaluation, name, scores)


def verdict_figures(evaluation: Evaluation, name: str, anchors: Float[Tensor, "K d"]) -> Row:
    """What the verdicts about known images and one unknown set are worth."""
    trial, verdicts = evaluation.trial, evaluation.verdicts
    known, unknown = sides(trial, trial.sources.index(name))
    metrics, judged = evaluation.by_source[name], known | unknown
    early = ~verdicts.unknown[:EARLY][known[:EARLY]] if bool(judged[0]) else verdicts.unknown[:0]
    row: Row = {field: 100 * metrics[metric] for field, metric in PERCENT.items()}
    return row | {
        "ece": metrics["ece"],
        "kept_first_200": 100 * float(early.double().mean()),  # none in later stages of a stream
        "known_first_200": len(early),
        "accuracy": right(verdicts.label[known], trial.label[known]),
        "accuracy_frozen": right((trial.z[known] @ anchors.T).argmax(1), trial.label[known]),
        "known": int(known.sum()),
        "unknown": int(unknown.sum()),
        "microseconds": 1e6 * evaluation.cost.seconds / len(trial.z),
        "state_bytes": evaluation.cost.state_bytes,
        "reliability": report.bins_of(verdicts.p_known[judged], known[judged]),
        "interval": [100 * end for end in evaluation.recall_interval or ()],
        "kept_by_photos": {str(photos): kept_by_photos(verdicts.margin[known], photos) for photos in PHOTOS},
    }


def kept_by_photos(margins: Float[Tensor, " n"], photos: int) -> float:
    """The share of known images above a threshold from some of them, drawn at random with the truth's help.

    An oracle that the adaptive threshold, which sees no label, is compared with.
    """
    draw = int(1e3 * margins.double().abs().sum())  # another one in every stream
    drawn = margins[torch.randint(len(margins), (photos,), generator=torch.Generator().manual_seed(draw))]
    return 100 * float((margins >= calibrated(drawn).threshold).double().mean())


def right(label: Tensor, truth: Tensor) -> float:
    return 100 * float((label == truth).double().mean())


@functools.lru_cache(maxsize=1)  # the stages of a stream follow one another
def run(stream: Stream, folder: Path, detector: str, recall: float, most: int) -> tuple[Evaluation, Int[Tensor, " T"]]:
    """A session's evaluation on a stream, and where its samples lie in the suite's pool."""
    suite = load_suite(stream.suite, folder, most)
    rows, trial = arriving(suite.pool, stream)
    session = Session(detectors.make(detector, suite.labels), Adaptive(recall))
    return evaluate(session, trial), rows


def arriving(pool: Trial, stream: Stream) -> tuple[Int[Tensor, " T"], Trial]:
    sources = [pool.sources.index(name) for name in stream.sets]
    rows = torch.isin(pool.source, torch.tensor([0, *sources])).nonzero().squeeze(1)
    here, options = pool[rows], {"sets": sources} if len(sources) > 1 else {}
    order = here.arrival(stream.order, stream.seed, **options)
    return rows[order], here[order]


def frozen_figures(evaluation: Evaluation, name: str, scores: Scores) -> Row:
    """The best frozen method by AUROC and by balanced accuracy at its own true 95 % threshold, and NegLabel."""
    known, unknown = sides(evaluation.trial, evaluation.trial.sources.index(name))
    ranks = {method: 100 * auroc(score[known], score[unknown]) for method, score in scores.items()}
    balanced = [100 * balanced_at_recall(score[known], score[unknown]) for score in scores.values()]
    best = max(ranks, key=lambda method: ranks[method])
    return {
        "frozen_auroc": ranks[best],
        "frozen_method": best,
        "frozen_balanced": max(balanced),
        "neglabel_auroc": ranks["neglabel"],
    }


@functools.lru_cache(maxsize=2)
def suite_scores(suite: str, folder: Path, most: int) -> Scores:
    """The scores of each frozen method on every sample of a suite: they depend on no order."""
    loaded = load_suite(suite, folder, most)
    return frozen_scores(loaded.labels, loaded.pool.z)


def frozen_scores(labels: LabelSpace, z: Float[Tensor, "n d"]) -> Scores:
    """The scores of each frozen method."""
    made = {name: detectors.make(name, labels, **options) for name, options in FROZEN.items()}
    return {name: one.score(one.start(), z).score for name, one in made.items()}


def tables(rows: list[Row], *, page: Path | None = None) -> Iterator[str]:
    if page:
        report.write(page, list(stream_table(rows)), list(verdict_goals.lines(rows)), rows)
    yield from stream_table(rows)
    yield ""
    yield from verdict_goals.lines(rows)


HEADS = (
    *("stream", "order", "kept", "rejected", "balanced", "best threshold", "frozen at 95 %", "ECE", "first 200 kept"),
    *("margin AUROC", "margin FPR95", "frozen AUROC", "score AUROC", "score FPR95", "names", "names frozen"),
)


def stream_table(rows: list[Row], *, sets_in: Container[str] = ORDERS) -> Iterator[str]:
    """Yield one line per suite, set and order, and means: over seeds, in shifts over rotations, over sets and suites.

    Lines of sets are left out in orders other than `sets_in`.
    """
    single = grouped((row for row in rows if row["order"] in sets_in), "suite", "set", "order")
    groups = {(f"{suite} {name}", order): group for (suite, name, order), group in single.items()}
    groups |= {(f"{suite}, mean", order): g for (suite, order), g in grouped(rows, "suite", "order").items()}
    groups |= {("all streams, mean", order): g for (order,), g in grouped(rows, "order").items()}
    return markdown_table(HEADS, ((*key, *cells(group)) for key, group in groups.items()))


def cells(rows: list[Row]) -> Iterator[str]:
    for field in ("kept", "rejected", "balanced", "best_threshold", "frozen_balanced", "ece", "kept_first_200"):
        yield number(mean(rows, field), 3 if field == "ece" else 1)
    for field in ("margin_auroc", "margin_fpr95", "frozen_auroc", "score_auroc", "score_fpr95"):
        yield number(mean(rows, field))
    for field in ("accuracy", "accuracy_frozen"):
        yield number(mean(rows, field))


def number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}".replace("nan", "-")


if __name__ == "__main__":
    main()
