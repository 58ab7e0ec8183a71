"""Charts as inline SVG: colours come from the page's style, so one drawing suits light and dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

WIDTH, HEIGHT = 1080, 260
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 30
BINS = 54
POINTS = 1500  # dots in a chart: more would only hide each other
TAIL = 0.002  # share of the margins at either end that may lie outside the frame


@dataclass(frozen=True)
class Axis:
    """A range of values and the pixels it is drawn on."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn on the edge."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values within the range, about `count` of them."""
        raw = (self.high - self.low) / count
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
        return [i * step for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def histogram(margin: Float[Tensor, " n"], known: Bool[Tensor, " n"], threshold: float) -> str:
    """How many images have which margin, known on top of unknown, with the threshold as it is now."""
    low, high = value_range(margin, threshold)
    bins = [torch.histc(side.clamp(low, high), BINS, low, high).tolist() for side in (margin[~known], margin[known])]
    x, y = _across(low, high), Axis(0, max(map(sum, zip(*bins, strict=True))) * 1.05, HEIGHT - BOTTOM, TOP)
    width = (high - low) / BINS
    parts = [*_horizontal(y), *_bottom(x)]
    for i, (below, above) in enumerate(zip(*bins, strict=True)):
        left, right = x(low + i * width) + 0.5, x(low + (i + 1) * width) - 0.5
        for kind, start, count in (("unknown", 0.0, below), ("known", below, above)):
            if count:
                top = y(start + count)
                parts.append(_rect(kind, left, top, right - left, y(start) - top))
    parts += _marks_at_edges(margin, low, high)
    at = x(threshold)
    side = "end" if at > WIDTH * 0.8 else "start"
    parts.append(f'<path class="threshold" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
    parts.append(_text(f"threshold {threshold:.2f}", at + (-6 if side == "end" else 6), TOP + 12, side, "threshold"))
    return _svg(parts, "Histogram of the margins, with the threshold between known and unknown")


def track(margin: Float[Tensor, " n"], known: Bool[Tensor, " n"], threshold: Float[Tensor, " n"]) -> str:
    """Every image as a dot in order of arrival, and the threshold that each of them met."""
    count = len(margin)
    low, high = value_range(margin, float(threshold.min()), float(threshold.max()))
    x, y = _across(0, max(count, 2)), Axis(low, high, HEIGHT - BOTTOM, TOP)
    parts, drawn = [*_horizontal(y), *_bottom(x)], _sample_indices(count, POINTS)
    for i in drawn:
        kind, at = "known" if known[i] else "unknown", float(margin[i])
        kind += "" if low <= at <= high else " clipped"
        parts.append(f'<circle class="{kind}" cx="{x(i + 1):.1f}" cy="{y(at):.1f}" r="2.2"/>')
    parts.append(_polyline("threshold", _steps([(x(i + 1), y(float(threshold[i]))) for i in drawn])))
    return _svg(parts, "Margins in order of arrival, with the threshold as it moved")


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line that changes its height at a point and nowhere between: what each image met, no more."""
    corners = [(x, before) for (_, before), (x, _) in pairwise(points)]
    return [one for pair in zip(points, [*corners, points[-1]], strict=True) for one in pair]


def _marks_at_edges(margin: Float[Tensor, " n"], low: float, high: float) -> list[str]:
    """Marks at the edges behind which there are more images: they count in the outermost bars."""
    below, above = int((margin < low).sum()), int((margin > high).sum())
    left = [_text(f"◂ {below:,} beyond", LEFT + 2, TOP, "start", "tick clipped")] if below else []
    right = [_text(f"{above:,} beyond ▸", WIDTH - RIGHT - 2, TOP, "end", "tick clipped")] if above else []
    return left + right


def curves(series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Lines of (samples, percent) between their lowest value and 100."""
    points = [point for line in series.values() for point in line if not math.isnan(point[1])]
    low = min((value for _, value in points), default=0.0)
    x, y = _across(0, max(at for at, _ in points)), Axis(max(low - 2, 0.0), 100, HEIGHT - BOTTOM, TOP)
    parts = [*_horizontal(y), *_bottom(x)]
    for kind, line in series.items():
        parts.append(_polyline(kind, [(x(at), y(value)) for at, value in line if not math.isnan(value)]))
    return _svg(parts, f"Curves over time: {', '.join(series)}")


def value_range(values: Float[Tensor, " n"], *also: float) -> tuple[float, float]:
    """A range that holds nearly all values and all of `also`, never empty."""
    ends = torch.quantile(values.double()[:: max(1, len(values) // 100_000)], torch.tensor([TAIL, 1 - TAIL]).double())
    low, high = min(float(ends[0]), *also), max(float(ends[1]), *also)
    room = 0.04 * (high - low) or 1.0
    return low - room, high + room


def _sample_indices(count: int, most: int) -> list[int]:
    return sorted({round(i) for i in torch.linspace(0, count - 1, min(count, most)).tolist()})


def _across(low: float, high: float) -> Axis:
    return Axis(low, high, LEFT, WIDTH - RIGHT)


def _horizontal(y: Axis) -> list[str]:
    lines = [f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>' for tick in y.ticks(4)]
    return lines + [_text(f"{tick:g}", LEFT - 8, y(tick) + 4, "end") for tick in map(_rounded, y.ticks(4))]


def _bottom(x: Axis) -> list[str]:
    """The numbers below a chart; every second one is thin, which a narrow page leaves out."""
    ticks = map(_rounded, x.ticks(9))
    return [
        _text(f"{tick:,g}", x(tick), HEIGHT - 8, "middle", f"tick{' thin' * (i % 2)}") for i, tick in enumerate(ticks)
    ]


def _rounded(value: float) -> float:
    return round(value, 10)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _polyline(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _text(words: str, x: float, y: float, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _svg(parts: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
