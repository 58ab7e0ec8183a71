"""Near unknown images in families of ImageNet: a third of the classes are names, another third near unknown ones.

    python benchmarks/families.py FOLDER                                     # nine families; minutes
    python benchmarks/families.py FOLDER --families dogs birds --seeds 5 --rows rows.jsonl
    python benchmarks/families.py FOLDER --widths 512 384 256      # another geometry: projected at random

As many classes of other families are far unknown ones. Negatives are `far`: names of the other families and of other
data sets, or `full`: also all members of the family that are no names, near unknown ones among them. Figures are in
percent; AUROC, of margins, is that of known against near unknown images.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from label_spaces import features, imagenet_classes
from unseen import LabelSpace, detectors
from unseen_bench.evaluate import evaluate, sides
from unseen_bench.metrics import auroc
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

FAMILIES = {
    "dogs": [*range(151, 269)],
    "birds": [*range(7, 25), *range(80, 101), *range(127, 147)],
    "food": [*range(923, 970)],
    "reptiles": [*range(25, 69)],
    "carnivores": [*range(269, 300)],
    "insects": [*range(300, 327)],
    "primates": [*range(365, 383)],
    "fish": [*range(7), *range(389, 398)],
    "hoofed": [*range(339, 356)],
}
NEGATIVES = ("far", "full")
ORDERS = ("shuffled", "id_first")
WIDTH = 512  # of the stored features


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=3)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--widths", nargs="+", type=int, default=[WIDTH], help=f"dimensions that are left of {WIDTH}")
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: Arguments) -> Iterator[Case]:
    chosen = product(arguments.widths, arguments.families, NEGATIVES, ORDERS, command.seeds(arguments))
    for width, family, negatives, order, seed in chosen:
        key = {"width": width, "family": family, "negatives": negatives, "order": order, "seed": seed}
        yield Case(key, functools.partial(judge, arguments.folder, **key))


def judge(folder: Path, *, width: int, family: str, negatives: str, order: str, seed: int) -> Row:
    """What the recommended detector and NegLabel in one group say of one stream."""
    labels, pool = drawn(folder, family, negatives, seed)
    tau = 0.01
    if width < WIDTH:
        rows, tau = projection(folder, width)
        known, negative, z = (normalize(one @ rows, dim=1) for one in (labels.id_anchors, labels.ood_anchors, pool.z))
        labels, pool = replace(labels, id_anchors=known, ood_anchors=negative), replace(pool, z=z)
    trial = pool.ordered(order, seed)
    found = evaluate(detectors.make(detectors.DEFAULT, labels, tau=tau), trial).by_source
    frozen = detectors.make("neglabel", labels, groups=1, tau=tau).score(None, trial.z).score
    known, near = sides(trial, trial.sources.index("near"))
    figures = {
        "pooled": found["near"]["margin_auroc"],
        "neglabel": auroc(frozen[known], frozen[near]),
        "far": found["far"]["margin_auroc"],
        "kept": found["near"]["kept"],
        "near_rejected": found["near"]["rejected"],
        "far_rejected": found["far"]["rejected"],
    }
    return {name: 100 * value for name, value in figures.items()}


@functools.cache
def projection(folder: Path, width: int) -> tuple[Float[Tensor, "d w"], float]:
    """Random orthogonal directions, and the tau at which ImageNet's names fit the projected images best.

    That is how CLIP itself comes by its 0.01.
    """
    text, images = features(folder, "text-imagenet1k"), features(folder, "images-imagenet_val5")
    rows, _ = torch.linalg.qr(torch.randn(WIDTH, width, generator=torch.Generator().manual_seed(width)))
    cosines = normalize(images.z @ rows, dim=1) @ normalize(text.z @ rows, dim=1).T
    truth = imagenet_classes(images, text)[images.true_labels]
    return rows, min(torch.logspace(-2.5, -1, 61).tolist(), key=lambda tau: float(cross_entropy(cosines / tau, truth)))


@functools.lru_cache(maxsize=2)  # orders follow one another
def drawn(folder: Path, family: str, negatives: str, seed: int) -> tuple[LabelSpace, Trial]:
    """The names of a family, and images of them, of other members and of other families."""
    text, images = features(folder, "text-imagenet1k"), features(folder, "images-imagenet_val5")
    generator = torch.Generator().manual_seed(seed)
    members = torch.tensor(FAMILIES[family])
    members = members[torch.randperm(len(members), generator=generator)]
    others = torch.randperm(1000, generator=generator)
    others = others[~torch.isin(others, members)]
    third = len(members) // 3
    names, near, far = members[:third], members[third : 2 * third], others[:third]
    used = others[third:] if negatives == "far" else torch.cat([others[third:], members[third:]])
    rows = torch.cat([text.z[used], features(folder, "text-other-names").z])
    labels = LabelSpace(
        tuple(f"known {i}" for i in range(third)), tuple(f"negative {i}" for i in range(len(rows))), text.z[names], rows
    )
    truth = imagenet_classes(images, text)[images.true_labels]
    source = torch.full_like(truth, -1)
    for place, classes in enumerate((names, near, far)):
        source[torch.isin(truth, classes)] = place
    label = (truth.unsqueeze(1) == names).long().argmax(1).masked_fill(source != 0, -1)
    pool = Trial(images.z, label, source, ("known", "near", "far"))
    return labels, pool[(source >= 0).nonzero().squeeze(1)]


def table(rows: list[Row]) -> Iterator[str]:
    """Yield a line per width, negatives, order and family, and means."""
    groups = {(*key,): group for key, group in grouped(rows, "width", "negatives", "order", "family").items()}
    groups |= {(*key, "mean"): group for key, group in grouped(rows, "width", "negatives", "order").items()}
    heads = ("pooled", "NegLabel", "worst difference", "far", "kept", "near rejected", "far rejected")
    lines = []
    for key, group in groups.items():
        worst = min(row["pooled"] - row["neglabel"] for row in group)
        cells = [f"{mean(group, name):.1f}" for name in ("pooled", "neglabel")]
        rest = [f"{mean(group, name):.1f}" for name in ("far", "kept", "near_rejected", "far_rejected")]
        lines.append((*map(str, key), *cells, f"{worst:+.1f}", *rest))
    return markdown_table(("width", "negatives", "order", "family", *heads), lines)


if __name__ == "__main__":
    main()
