"""Plots of a suite's rows and margins as SVG text in the page's own ink, so that it reads in dark and light."""

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.errors import import_extra
from unseen_bench.run import Row, mean_and_deviation

INK = "#010203"  # stands for the page's own ink until the SVG is written
ID_COLOUR, OOD_COLOUR = "#3b82c4", "#d9622b"
COLOURS = ("#3b82c4", "#d9622b", "#2a9d6f", "#b0528f", "#8a7a1f", "#7a6bd1", "#c23b4b", "#4c9aa8", "#8f8f8f", "#a0693d")
STYLES = ("-", "--", ":", "-.")
WIDTH = 11.0  # inches of a figure as wide as the page
COLUMNS = 7  # of a legend

Array = NDArray[np.float64]
Margins = Mapping[str, tuple[Array, Array]]  # method -> (known images, unknown images)


def pyplot() -> Any:
    """Matplotlib's pyplot without a display, or say what to install."""
    import_extra("matplotlib", "plot").use("agg")
    return import_extra("matplotlib.pyplot", "plot")


def histograms(margins: Mapping[str, Margins]) -> str:
    """Draw how the margins of known and unknown images lie, one panel per method and set."""
    methods = list(dict.fromkeys(method for one in margins.values() for method in one))
    with _figure(len(methods), len(margins), height=1.45 * len(methods) + 0.5) as (figure, axes, svg):
        for row, method in enumerate(methods):
            for column, (name, one) in enumerate(margins.items()):
                axis = axes[row, column]
                if method in one:
                    _histogram(axis, *one[method])
                axis.set_yticks([])
                if row == 0:
                    axis.set_title(name)
                if column == 0:
                    axis.set_ylabel(method)
        _legend(figure, axes)
        return svg()


def over_stream(rows: Sequence[Row], metric: str) -> str:
    """Draw a metric of consecutive slices of the stream, mean over seeds, one panel per set."""
    groups: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[", ".join(row["sets"])][row["detector"]].append(row)
    with _panels(len(groups), height=2.6) as (figure, axes, svg):
        for axis, (name, methods) in zip(axes.flat, groups.items(), strict=False):
            for index, (method, group) in enumerate(methods.items()):
                samples, values, spread = _mean_over_seeds(group, metric)
                axis.plot(samples, values, color=_colour(index), linestyle=_style(index), label=method)
                axis.fill_between(samples, values - spread, values + spread, color=_colour(index), alpha=0.15, lw=0)
            axis.set(title=name, xlabel="samples", ylabel=f"{metric.replace('_', ' ')}, %")
            if not metric.endswith("auroc"):
                axis.set_ylim(0, 102)
        _legend(figure, axes)
        return svg()


def curves(rows: Sequence[Row], setting: str) -> str:
    """Draw AUROC and FPR95 against one setting, mean over seeds, one line per detector and set."""
    points: dict[tuple[str, str], dict[float, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name in row["by_set"]:
            points[row["detector"], name][row["settings"][setting]].append(row)
    with _panels(2, height=3.2) as (figure, axes, svg):
        for axis, metric in zip(axes.flat, ("margin_auroc", "margin_fpr95_id"), strict=False):
            for index, ((detector, name), values) in enumerate(points.items()):
                xs = sorted(values)
                pairs = [mean_and_deviation([row["by_set"][name][metric] for row in values[x]]) for x in xs]
                ys, spread = (100 * np.array(side) for side in zip(*pairs, strict=True))
                axis.errorbar(xs, ys, spread, color=_colour(index), marker="o", ms=3, label=f"{detector}, {name}")
            axis.set(xlabel=setting, ylabel=f"{metric}, %", xscale="log" if _spans_decades(points) else "linear")
        _legend(figure, axes)
        return svg()


def _histogram(axis: Any, known: Array, unknown: Array) -> None:
    low, high = np.quantile(np.concatenate([known, unknown]), [0.002, 0.998])
    bins = np.linspace(low, high if high > low else low + 1, 50)
    for values, colour, label in ((known, ID_COLOUR, "known"), (unknown, OOD_COLOUR, "unknown")):
        axis.hist(values, bins, density=True, color=colour, alpha=0.55, label=label)


def _mean_over_seeds(rows: Sequence[Row], metric: str) -> tuple[Array, Array, Array]:
    samples = np.array([point["samples"] for point in rows[0]["over_time"]])
    values = np.array(
        [[100 * (math.nan if point[metric] is None else point[metric]) for point in row["over_time"]] for row in rows]
    )
    defined = ~np.isnan(values).all(axis=0)
    values, samples = values[:, defined], samples[defined]
    return samples, np.nanmean(values, axis=0), np.nanstd(values, axis=0)


def _spans_decades(points: Mapping[Any, Mapping[float, Any]]) -> bool:
    values = [value for one in points.values() for value in one]
    return min(values) > 0 and max(values) / min(values) >= 10


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _style(index: int) -> str:
    return STYLES[index // len(COLOURS) % len(STYLES)]


def _legend(figure: Any, axes: Any) -> None:
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = min(COLUMNS, len(handles))
    names = [name for start in range(columns) for name in list(handles)[start::columns]]  # it fills columns first
    figure.legend([handles[name] for name in names], names, loc="outside upper left", ncols=columns, frameon=False)


def _panels(count: int, *, height: float) -> Any:
    columns = min(3, max(1, count))
    rows = math.ceil(max(1, count) / columns)
    return _figure(rows, columns, height=height * rows + 0.4, used=count)


@contextmanager
def _figure(rows: int, columns: int, *, height: float, used: int | None = None) -> Any:
    """Yield a figure, its axes and a function that returns it as SVG text."""
    plt = pyplot()
    quiet: dict[str, object] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
    }
    inked = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
    )
    quiet |= {"grid.alpha": 0.2, "figure.constrained_layout.hspace": 0.08}
    text = {"svg.fonttype": "none", "svg.hashsalt": "unseen", "font.size": 9, "axes.titlesize": 10}
    with plt.rc_context({**quiet, **inked, **text}):
        figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), layout="constrained", squeeze=False)
        for axis in axes.flat[used if used is not None else axes.size :]:
            axis.set_visible(False)
        try:
            yield figure, axes, _svg(figure)
        finally:
            plt.close(figure)


def _svg(figure: Any) -> Callable[[], str]:
    def text() -> str:
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
        body = file.getvalue()
        body = body[body.index("<svg") :].replace(INK, "currentColor")
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        return re.sub(r'width="[^"]*" height="[^"]*"|height="[^"]*" width="[^"]*"', "", body, count=1)

    return text
