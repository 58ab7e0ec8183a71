"""Charts as numbers in pixels, which a template draws: colours come from the page's style, for light and dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.verdicts import VERDICTS


@dataclass(frozen=True)
class ChartNumbers:
    """How much a chart shows."""

    bins: int = 54
    points: int = 1500  # dots in a chart: more would only hide each other
    tail: float = 0.002  # share of the margins at either end that may lie outside the frame


NUMBERS = ChartNumbers()


@dataclass(frozen=True)
class Chart:
    """What is drawn: grid and ticks with their texts, bars, dots, lines and words, each with the kind of its colour."""

    title: str
    grid: list[tuple[float, str]]  # y and text
    ticks: list[tuple[float, str]]  # x and text
    legend: tuple[tuple[str, str], ...] = ()  # kind and words
    bars: list[tuple[str, float, float, float, float]] = field(default_factory=list)  # kind, x, y, width, height
    dots: list[tuple[str, float, float]] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)  # kind and points
    words: list[tuple[str, float, float, str, str]] = field(default_factory=list)  # kind, x, y, anchor, text
    width: int = 1080
    height: int = 260
    left: int = 46
    right: int = 1068
    top: int = 14
    bottom: int = 230


@dataclass(frozen=True)
class Axis:
    """A range of values and the pixels it is drawn on."""

    low: float
    high: float
    start: float = Chart.left
    end: float = Chart.right

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn on the edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int) -> list[float]:
        """Round values within the range, about `count` of them."""
        raw = (self.high - self.low) / count
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        return [round(i * step, 10) for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def empty(title: str, x: Axis, y: Axis, legend: tuple[tuple[str, str], ...] = ()) -> Chart:
    """A chart with nothing but its grid and its numbers."""
    grid = [(y(tick), f"{tick:g}") for tick in y.ticks(4)]
    return Chart(title, grid, [(x(tick), f"{tick:,g}") for tick in x.ticks(9)], legend)


def vertical(low: float, high: float) -> Axis:
    """The axis of heights: high values at the top."""
    return Axis(low, high, Chart.bottom, Chart.top)


def histogram(margin: Float[Tensor, " n"], verdict: Sequence[str], threshold: float) -> Chart:
    """How many images have which margin, known on doubtful on unknown, with the threshold as it is now."""
    low, high = value_range(margin, threshold)
    sides = [margin[torch.tensor([one == word for one in verdict])].clamp(low, high) for word in reversed(VERDICTS)]
    bins = [torch.histc(side, NUMBERS.bins, low, high).tolist() for side in sides]
    x, y = Axis(low, high), vertical(0, max(map(sum, zip(*bins, strict=True))) * 1.05)
    kinds = tuple((kind, kind) for kind in (*VERDICTS, "threshold"))
    chart = empty("Histogram of the margins, with the threshold between known and unknown", x, y, legend=kinds)
    width = (high - low) / NUMBERS.bins
    for i, counts in enumerate(zip(*bins, strict=True)):
        left, right, start = x(low + i * width) + 0.5, x(low + (i + 1) * width) - 0.5, 0.0
        for kind, count in zip(reversed(VERDICTS), counts, strict=True):
            if count:
                top = y(start + count)
                chart.bars.append((kind, left, top, round(right - left, 1), round(y(start) - top, 1)))
                start += count
    if below := int((margin < low).sum()):  # the images behind an edge count in the outermost bars
        chart.words.append(("tick clipped", chart.left + 2, Chart.top, "start", f"◂ {below:,} beyond"))
    if above := int((margin > high).sum()):
        chart.words.append(("tick clipped", chart.right - 2, Chart.top, "end", f"{above:,} beyond ▸"))
    at = x(threshold)
    away, anchor = (-6, "end") if at > chart.width * 0.8 else (6, "start")
    chart.lines.append(("threshold", _points([(at, Chart.top), (at, Chart.bottom)])))
    chart.words.append(("threshold", at + away, Chart.top + 12, anchor, f"threshold {threshold:.2f}"))
    return chart


def track(margin: Float[Tensor, " n"], verdict: Sequence[str], threshold: Float[Tensor, " n"]) -> Chart:
    """Every image as a dot in order of arrival, and the threshold that each of them met."""
    count = len(margin)
    low, high = value_range(margin, float(threshold.min()), float(threshold.max()))
    x, y = Axis(0, max(count, 2)), vertical(low, high)
    chart = empty("Margins in order of arrival, with the threshold as it moved", x, y)
    drawn = sorted({round(i) for i in torch.linspace(0, count - 1, min(count, NUMBERS.points)).tolist()})
    for i in drawn:
        at = float(margin[i])
        kind = verdict[i] + ("" if low <= at <= high else " clipped")
        chart.dots.append((kind, x(i + 1), y(at)))
    met = [(x(i + 1), y(float(threshold[i]))) for i in drawn]
    # the line changes its height at a point and nowhere between: what each image met, no more
    corners = [(right, before) for (_, before), (right, _) in pairwise(met)]
    steps = [one for pair in zip(met, [*corners, met[-1]], strict=True) for one in pair]
    chart.lines.append(("threshold", _points(steps)))
    return chart


def curves(series: Mapping[str, Sequence[tuple[float, float]]], legend: tuple[tuple[str, str], ...] = ()) -> Chart:
    """Lines of (samples, percent) between their lowest value and 100."""
    defined = {kind: [point for point in line if not math.isnan(point[1])] for kind, line in series.items()}
    points = [point for line in defined.values() for point in line]
    low = min((value for _, value in points), default=0.0)
    x, y = Axis(0, max(at for at, _ in points)), vertical(max(low - 2, 0.0), 100)
    chart = empty(f"Curves over time: {', '.join(series)}", x, y, legend=legend)
    chart.lines.extend((kind, _points([(x(at), y(value)) for at, value in line])) for kind, line in defined.items())
    return chart


def value_range(values: Float[Tensor, " n"], *also: float) -> tuple[float, float]:
    """A range that holds nearly all values and all of `also`, never empty."""
    ends = torch.quantile(
        values.double()[:: max(1, len(values) // 100_000)], torch.tensor([NUMBERS.tail, 1 - NUMBERS.tail]).double()
    )
    low, high = min(float(ends[0]), *also), max(float(ends[1]), *also)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
