"""unseen bench gap: how far your class names lie from your images, and what learning online could gain."""

import math
from pathlib import Path

import torch
from rich.table import Table

from unseen import LabelSpace
from unseen.cli import output
from unseen.features import load_features
from unseen_bench import theory


def run(features: str, space: Path, *, as_json: bool) -> None:
    """Measure the gap and print it."""
    labels, images = LabelSpace.load(space), load_features(features)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))  # regret is of a stream
    with output.err.status(f"fitting {len(labels.names):,} prototypes to {len(images):,} samples"):
        found = theory.measure(labels, images.z[order])
    if as_json:
        output.emit(gap_record(found))
    else:
        print_gap(found)


def gap_record(found: theory.Gap) -> dict[str, object]:
    """Every number as one JSON-ready object."""
    best, regret = found.best, found.regret
    return {
        "modality": found.modality._asdict(),
        "distance": float(found.distance.sum()),
        "bound": float(found.bound.bound.sum()),
        "rank": found.bound.rank,
        "leading_bound": float(found.leading_bound.bound.sum()),
        "leading_rank": found.leading_bound.rank,
        "own_bound": float(found.own_bound.sum()),
        "converged": best.converged,
        "residual": best.largest_residual,
        "iterations": best.iterations,
        "reversed": int((best.sign < 0).sum()),
        "undefined": int(best.undefined.sum()),
        "regret": [{"samples": n, "regret": value, "paper_bound": limit} for n, value, limit in _points(regret)],
        "largest_gradient": float(regret.gradient.max()),
        "classes": [
            {"name": name, "distance": distance, "bound": bound, "own_bound": own}
            for name, distance, bound, own in zip(
                found.names, found.distance.tolist(), found.bound.bound.tolist(), found.own_bound.tolist(), strict=True
            )
        ],
    }


def print_gap(found: theory.Gap) -> None:
    """Print the totals, the classes farthest from their names, and the regret along the stream."""
    modality, best = found.modality, found.best
    middle = float(best.residual.nanmedian())
    median = "" if math.isnan(middle) else f" (median {middle:.2g})"
    output.out.print(
        f"mean cosine image-image {modality.image_image:.3f} · image-text {modality.image_text:.3f} · "
        f"text-text {modality.text_text:.3f} · centroids {modality.centroids:.3f} apart"
    )
    output.out.print(
        f"best bank of names for pseudo-labels: {'converged' if best.converged else 'NOT converged'}, "
        f"largest residual {best.largest_residual:.2g}{median}, wanted {theory.NUMBERS.tolerance:g}, "
        f"after {best.iterations} iterations; "
        f"{int((best.sign < 0).sum())} classes point against the closed form, "
        f"{int(best.undefined.sum())} have none\n"
    )
    output.out.print(_distances(found))
    output.out.print(_regret(found.regret))
    output.out.print("The paper's bound assumes a convex set, and the sphere is none: a measurement, no guarantee.")


def _distances(found: theory.Gap, shown: int = 10) -> Table:
    table = Table(title="squared distance of each name from its best prototype")
    table.add_column("class")
    columns = {
        "distance": found.distance,
        f"bound (rank {found.bound.rank})": found.bound.bound,
        f"leading (rank {found.leading_bound.rank})": found.leading_bound.bound,
        "own images": found.own_bound,
    }
    for column in columns:
        table.add_column(column, justify="right")
    for index in found.distance.argsort(descending=True)[:shown].tolist():
        table.add_row(found.names[index], *(f"{float(values[index]):.3f}" for values in columns.values()))
    table.add_section()
    table.add_row(f"all {len(found.names)}", *(f"{float(values.sum()):,.1f}" for values in columns.values()))
    return table


def _regret(regret: theory.Regret) -> Table:
    table = Table(title="regret of learning online against the best fixed bank")
    for column in ("samples", "regret", "per sample", "paper's bound"):
        table.add_column(column, justify="right")
    for samples, value, limit in _points(regret):
        table.add_row(f"{samples:,}", f"{value:,.1f}", f"{value / samples:.3f}", f"{limit:,.0f}")
    return table


def _points(regret: theory.Regret, points: int = 8) -> list[tuple[int, float, float]]:
    total = len(regret.loss)
    chosen = sorted({max(1, total * part // points) for part in range(1, points + 1)})
    return [(n, float(regret.curve[n - 1]), float(regret.bound[n - 1])) for n in chosen]
