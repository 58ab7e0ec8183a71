"""Goals for verdicts, checked against the rows of verdicts.py: how many streams meet each, and which is the worst.

TODAY and ADANEG were measured on whole sets, which `verdicts.py --most 100000` takes; thinned sets may differ.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from unseen_bench.run import Row, grouped, mean

TODAY = {"textures10": 94.5, "intel_scenes": 99.5, "flowers102": 99.8, "mnist": 99.9}  # imagenet200, shuffled
ADANEG = {("imagenet200", "near"): 88.7, ("imagenet200-lowres", "textures10"): 88.0}
SHARE_IN_RANGE = 0.9  # of the streams, for the range of kept
FEWEST_EARLY = 50  # known images among the first 200 from which their share is judged


class Goal(NamedTuple):
    """A quantity that must not be negative: by how much a stream is better than it has to be."""

    name: str
    spare: Callable[[Row], float]
    applies: Callable[[Row], bool] = lambda row: True
    share: float = 1.0  # of the streams that must meet it


def is_shuffled(row: Row) -> bool:
    return bool(row["order"] == "shuffled")


def is_tin_near(row: Row) -> bool:
    return str(row["suite"]).startswith("tin-near")


def is_late_near(row: Row) -> bool:
    return row["order"] == "temporal" and row["set"] == "near" and row["sets"][0] != "near"


def has_interval(row: Row) -> bool:
    return bool(row["interval"]) and row["order"] != "temporal"  # a stage is not the whole stream


def has_early_known(row: Row) -> bool:
    return bool(row["known_first_200"] >= FEWEST_EARLY)


GOALS = (
    Goal("margin AUROC at least the best frozen less 0.5", lambda r: r["margin_auroc"] - r["frozen_auroc"] + 0.5),
    Goal(
        "far then near, within the stage: frozen less 0.5",
        lambda r: r["margin_auroc"] - r["frozen_auroc"] + 0.5,
        is_late_near,
    ),
    Goal(
        "balanced at least the best frozen at its true 95 % less 1", lambda r: r["balanced"] - r["frozen_balanced"] + 1
    ),
    Goal("kept from 92 to 98", lambda r: min(r["kept"] - 92, 98 - r["kept"]), share=SHARE_IN_RANGE),
    Goal("kept never under 88", lambda r: r["kept"] - 88),
    Goal(
        "kept within the interval that the rule states",
        lambda r: min(r["kept"] - r["interval"][0], r["interval"][1] - r["kept"]),
        has_interval,
        share=SHARE_IN_RANGE,
    ),
    Goal("kept of the first 200 at least 90", lambda r: r["kept_first_200"] - 90, has_early_known),
    Goal("calibration error at most .05 shuffled", lambda r: 0.05 - r["ece"], is_shuffled),
    Goal("calibration error at most .10", lambda r: 0.10 - r["ece"]),
    Goal("names: frozen accuracy or better", lambda r: r["accuracy"] - r["accuracy_frozen"]),
    Goal("names on tin-near: frozen + 2", lambda r: r["accuracy"] - r["accuracy_frozen"] - 2, is_tin_near),
)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield one line per goal."""
    for goal in GOALS:
        judged = [(goal.spare(row), row) for row in rows if goal.applies(row)]
        if judged:
            yield stream_line(goal, judged)
    yield from mean_lines(rows)
    yield from oracle_lines(rows)


def stream_line(goal: Goal, judged: list[tuple[float, Row]]) -> str:
    met = sum(spare >= 0 for spare, _ in judged)
    spare, worst = min(judged, key=lambda pair: pair[0])
    where = " ".join(str(worst[field]) for field in ("suite", "set", "order", "seed"))
    mark = "met" if met >= goal.share * len(judged) else "NOT MET"
    wanted = f" (wanted: {100 * goal.share:.0f} %)" if goal.share < 1 else ""
    return f"{mark:<8} {goal.name}: {met} of {len(judged)} streams{wanted}; worst {spare:+.2f}, {where}"


def mean_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the goals that are about means over streams."""
    gap = statistics.fmean(row["best_threshold"] - row["balanced"] for row in rows)
    yield mean_line("balanced within 3 of the best single threshold, mean of all streams", 3 - gap, f"{gap:.2f} below")
    shuffled = [row for row in rows if is_shuffled(row)]
    for (suite, name), group in grouped(shuffled, "suite", "set").items():
        found = mean(group, "margin_auroc")
        if suite == "imagenet200" and name in TODAY:
            yield mean_line(f"{name}, shuffled: at least {TODAY[name]}", found - TODAY[name] + 0.05, f"{found:.1f}")
        if (suite, name) in ADANEG:
            wanted = ADANEG[suite, name]
            yield mean_line(f"{suite} {name}, shuffled: AdaNeg, {wanted}", found - wanted + 0.05, f"{found:.1f}")
    if near := [row for row in shuffled if row["suite"] in ("tin-near-2", "tin-near-3")]:
        gain = mean(near, "margin_auroc") - mean(near, "neglabel_auroc")
        yield mean_line("tin-near, splits 2 and 3, shuffled: NegLabel + 3", gain - 3, f"{gain:+.2f}")


def oracle_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how often a threshold from known images of the stream itself, told by the truth, keeps 92 to 98 %."""
    for photos in rows[0]["kept_by_photos"]:
        kept = [row["kept_by_photos"][photos] for row in rows]
        within, under = sum(92 <= share <= 98 for share in kept), sum(share < 88 for share in kept)
        yield f"oracle   {photos} known images of the stream: {within} of {len(rows)} keep 92 to 98, {under} under 88"


def mean_line(name: str, spare: float, found: str) -> str:
    return f"{'met' if spare >= 0 else 'NOT MET':<8} {name}: {found}"
