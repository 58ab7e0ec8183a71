"""What a user gets: verdicts, margins and confidences of a session, on stored CLIP features, in every arrival order.

    python benchmarks/verdicts.py FOLDER                                     # every suite, set and order; minutes
    python benchmarks/verdicts.py FOLDER --suites imagenet200 --orders shuffled id_first --seeds 3
    python benchmarks/verdicts.py FOLDER --rows rows.jsonl --json            # one object per stream; resumes

Figures are of margins, in percent, but for `ece`. `best_threshold` is the balanced accuracy of the best single
threshold; `frozen_balanced` and `frozen_auroc` are the best of the frozen methods, the first at its own true 95 %
threshold. In the order `temporal` each stage of each rotation of the sets is a row, judged by its own samples. Sets are
thinned to --most images. CIFAR suites need the offline text tower (`unseen models fetch offline`). Below the table: how
many streams meet each goal, and which is the worst.
"""

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stored_suites import SUITES, load_suite, suites_parser
from unseen import LabelSpace, Session, detectors
from unseen.threshold import calibrated
from unseen_bench import trial as arrival
from unseen_bench.evaluate import EARLY, Evaluation, evaluate, sides
from unseen_bench.metrics import auroc, balanced_at_recall
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments

FROZEN: dict[str, dict[str, Any]] = {"mcm": {}, "neglabel": {"groups": 100}, "csp": {}, "dnm": {}, "eoe": {}}
Scores = dict[str, Float[Tensor, " n"]]  # of each frozen method
ORDERS = tuple(kind for kind in arrival.ORDERS if kind != "mixture")  # whose halves mostly_id and mostly_ood bracket
PHOTOS = (20, 50, 100, 200)  # known images that an oracle draws to set a threshold
PERCENT = ("margin_auroc", "margin_fpr95_id", "kept", "rejected", "balanced", "best_threshold", "balanced_at_95")
COLUMNS = {
    "kept": "kept",
    "rejected": "rejected",
    "balanced": "balanced",
    "best threshold": "best_threshold",
    "frozen at 95 %": "frozen_balanced",
    "ECE": "ece",
    "first 200 kept": "kept_first_200",
    "AUROC": "margin_auroc",
    "FPR95": "margin_fpr95_id",
    "frozen AUROC": "frozen_auroc",
    "names": "accuracy",
    "names frozen": "accuracy_frozen",
}


def main() -> None:
    parser = suites_parser(__doc__, seeds=1, chosen=SUITES)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, tables)


class Stream(NamedTuple):
    """Which stream of a suite: the unknown sets (several only in a shift), the order and the seed."""

    suite: str
    sets: tuple[str, ...]
    order: str
    seed: int


def cases(arguments: Arguments) -> Iterator[Case]:
    for suite in arguments.suites:
        load_suite(suite, arguments.folder, arguments.most)  # one that cannot be read ends everything at once
    for suite in arguments.suites:
        for order in arguments.orders:
            for seed in command.seeds(arguments):
                for sets in rotations(SUITES[suite], order):
                    stream = Stream(suite, sets, order, seed)
                    for name in sets:
                        key = stream._asdict() | {"sets": list(sets), "set": name, "most": arguments.most}
                        yield Case(key, functools.partial(judge, stream, name, arguments.folder, arguments.most))


def rotations(sets: tuple[str, ...], order: str) -> list[tuple[str, ...]]:
    """The sets of each stream: one alone, or in a shift all of them, each first in one stream."""
    if order != "temporal":
        return [(name,) for name in sets]
    return [sets[start:] + sets[:start] for start in range(len(sets))] if len(sets) > 1 else []


def judge(stream: Stream, name: str, folder: Path, most: int) -> Row:
    """Every figure of one stream, or of one stage of it."""
    evaluation, rows = run(stream, folder, most)
    scores = {method: score[rows] for method, score in suite_scores(stream.suite, folder, most).items()}
    return figures(evaluation, name, load_suite(stream.suite, folder, most).labels, scores)


@functools.lru_cache(maxsize=1)  # the stages of a stream follow one another
def run(stream: Stream, folder: Path, most: int) -> tuple[Evaluation, Int[Tensor, " T"]]:
    """A session's evaluation on a stream, and where its samples lie in the suite's pool."""
    suite = load_suite(stream.suite, folder, most)
    sources = [suite.pool.sources.index(name) for name in stream.sets]
    rows = torch.isin(suite.pool.source, torch.tensor([0, *sources])).nonzero().squeeze(1)
    here, options = suite.pool[rows], {"sets": sources} if len(sources) > 1 else {}
    order = here.arrival(stream.order, stream.seed, **options)
    return evaluate(Session(suite.labels), here[order]), rows[order]


@functools.lru_cache(maxsize=2)
def suite_scores(suite: str, folder: Path, most: int) -> Scores:
    """The scores of each frozen method on every sample of a suite: they depend on no order."""
    loaded = load_suite(suite, folder, most)
    return frozen_scores(loaded.labels, loaded.pool.z)


def frozen_scores(labels: LabelSpace, z: Float[Tensor, "n d"]) -> Scores:
    """The scores of each frozen method."""
    made = {name: detectors.make(name, labels, **options) for name, options in FROZEN.items()}
    return {name: one.score(one.start(), z).score for name, one in made.items()}


def figures(evaluation: Evaluation, name: str, labels: LabelSpace, scores: Scores) -> Row:
    """What the verdicts about known images and one unknown set are worth, and the best of the frozen methods."""
    trial, verdicts = evaluation.trial, evaluation.verdicts
    known, unknown = sides(trial, trial.sources.index(name))
    metrics = evaluation.by_source[name]
    early = ~verdicts.unknown[:EARLY][known[:EARLY]] if bool((known | unknown)[0]) else verdicts.unknown[:0]
    frozen = (trial.z[known] @ labels.id_anchors.T).argmax(1)
    return {
        **{field: 100 * metrics[field] for field in PERCENT},
        "ece": metrics["ece"],
        "kept_first_200": share(early),  # none in later stages of a stream
        "accuracy": share(verdicts.label[known] == trial.label[known]),
        "accuracy_frozen": share(frozen == trial.label[known]),
        "known": int(known.sum()),
        "unknown": int(unknown.sum()),
        "interval": [100 * end for end in evaluation.recall_interval or ()],
        "kept_by_photos": {str(photos): kept_by_photos(verdicts.margin[known], photos) for photos in PHOTOS},
        "frozen_auroc": max(100 * auroc(score[known], score[unknown]) for score in scores.values()),
        "frozen_balanced": max(100 * balanced_at_recall(score[known], score[unknown]) for score in scores.values()),
    }


def share(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def kept_by_photos(margins: Float[Tensor, " n"], photos: int) -> float:
    """The share of known images above a threshold from some of them, drawn at random with the truth's help.

    An oracle that the adaptive threshold, which sees no label, is compared with.
    """
    draw = int(1e3 * margins.double().abs().sum())  # another one in every stream
    drawn = margins[torch.randint(len(margins), (photos,), generator=torch.Generator().manual_seed(draw))]
    return share(margins >= calibrated(drawn).threshold)


def tables(rows: list[Row]) -> Iterator[str]:
    yield from stream_table(rows)
    yield ""
    yield from goal_lines(rows)


def stream_table(rows: list[Row], *, sets_in: Container[str] = ORDERS) -> Iterator[str]:
    """Yield one line per suite, set and order, and means: over seeds, in shifts over rotations, over sets and suites.

    Lines of sets are left out in orders other than `sets_in`.
    """
    single = grouped((row for row in rows if row["order"] in sets_in), "suite", "set", "order")
    groups = {(f"{suite} {name}", order): group for (suite, name, order), group in single.items()}
    groups |= {(f"{suite}, mean", order): g for (suite, order), g in grouped(rows, "suite", "order").items()}
    groups |= {("all streams, mean", order): g for (order,), g in grouped(rows, "order").items()}
    lines = (
        (*key, *(f"{mean(group, field):.{3 if field == 'ece' else 1}f}" for field in COLUMNS.values()))
        for key, group in groups.items()
    )
    return markdown_table(("stream", "order", *COLUMNS), lines)


class Goal(NamedTuple):
    """A quantity that must not be negative: by how much a stream is better than it has to be."""

    name: str
    spare: Callable[[Row], float]
    share: float = 1.0  # of the streams that must meet it


GOALS = (
    Goal("AUROC at least the best frozen less 0.5", lambda row: row["margin_auroc"] - row["frozen_auroc"] + 0.5),
    Goal("balanced at least the best frozen less 1", lambda row: row["balanced"] - row["frozen_balanced"] + 1),
    Goal("kept from 92 to 98", lambda row: min(row["kept"] - 92, 98 - row["kept"]), share=0.9),
    Goal("kept never under 88", lambda row: row["kept"] - 88),
    Goal("names: frozen accuracy or better", lambda row: row["accuracy"] - row["accuracy_frozen"]),
)
IN_INTERVAL = Goal(
    "kept within the interval that the rule states",
    lambda row: min(row["kept"] - row["interval"][0], row["interval"][1] - row["kept"]),
    share=0.9,
)


def goal_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line per goal, and how often a threshold from known images of the stream itself keeps 92 to 98 %."""
    whole = [row for row in rows if row["interval"] and row["order"] != "temporal"]  # a stage is not the whole stream
    for goal, judged in (*((goal, rows) for goal in GOALS), (IN_INTERVAL, whole)):
        if judged:
            yield goal_line(goal, judged)
    for photos in map(str, PHOTOS):
        kept = [row["kept_by_photos"][photos] for row in rows]
        within, under = sum(92 <= one <= 98 for one in kept), sum(one < 88 for one in kept)
        yield f"oracle   {photos} known images of the stream: {within} of {len(rows)} keep 92 to 98, {under} under 88"


def goal_line(goal: Goal, rows: Sequence[Row]) -> str:
    met, worst = sum(goal.spare(row) >= 0 for row in rows), min(rows, key=goal.spare)
    where = " ".join(str(worst[field]) for field in ("suite", "set", "order", "seed"))
    mark = "met" if met >= goal.share * len(rows) else "NOT MET"
    wanted = f" (wanted: {100 * goal.share:.0f} %)" if goal.share < 1 else ""
    return f"{mark:<8} {goal.name}: {met} of {len(rows)} streams{wanted}; worst {goal.spare(worst):+.2f}, {where}"


if __name__ == "__main__":
    main()
