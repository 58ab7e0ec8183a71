"""How many words `unseen detect` should read, and how many negatives it should keep: the table of docs/detect.md.

    python benchmarks/vocabulary.py ../shared/clip-b16

Image features are real CLIP; names and negatives go through the offline text tower (`unseen models fetch offline`).
Every setting encodes its words once, about 280 a second, and all of them take eight minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from unseen import LabelSpace, detectors, load_encoder
from unseen.encoders.base import Encoder
from unseen.features import Features, load_features
from unseen.labels import wordnet
from unseen_bench.evaluate import evaluate
from unseen_bench.run import Case, Row, command, grouped, markdown_table
from unseen_bench.trial import Trial

SETTINGS = (
    (5_000, 750),
    (8_000, 4_000),
    (10_000, 5_000),
    (15_000, 10_000),
    (20_000, 3_000),
    (20_000, 10_000),
    (0, 3_000),
    (0, 10_000),
)


def trial(z: Tensor, label: Tensor, unknown: dict[str, Tensor]) -> Trial:
    """Known and unknown samples in one random order."""
    parts = [z, *unknown.values()]
    labels = torch.cat([label.long(), torch.full((sum(map(len, unknown.values())),), -1)])
    source = torch.cat([torch.full((len(part),), i) for i, part in enumerate(parts)])
    return Trial(torch.cat(parts), labels, source, ("known", *unknown)).ordered("shuffled", seed=0)


def tasks(folder: Path) -> Iterator[tuple[str, list[str], Trial]]:
    """Yield a title, the known names and a stream: ten and a hundred ImageNet names, and CIFAR-10's."""
    read = {path.stem.removeprefix("images-"): load_features(path) for path in sorted(folder.glob("images-*"))}
    far = {name: read[name].z[::step] for name, step in (("textures10", 4), ("intel_scenes", 10), ("flowers102", 8))}
    names = list(load_features(folder / "text-imagenet1k.safetensors").keys)
    chosen = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    for count, near in ((10, 200), (100, 500)):
        yield f"{count} ImageNet names", *imagenet(read["imagenet_val5"], names, chosen[:count].tolist(), near, far)
    cifar, digits = read["cifar10"], read["mnist"].z[::40]
    assert cifar.labels is not None
    yield "CIFAR-10", list(cifar.classes), trial(cifar.z[::10], cifar.labels[::10], {**far, "digits": digits})


def imagenet(
    images: Features, names: list[str], classes: list[int], near: int, far: dict[str, Tensor]
) -> tuple[list[str], Trial]:
    """Some classes as known names and images of others among the unknown."""
    assert images.labels is not None
    place = {label: i for i, label in enumerate(classes)}
    label = torch.tensor([place.get(label, -1) for label in images.labels.tolist()])
    others = images.z[label < 0]
    others = others[:: len(others) // near][:near]
    return [names[i] for i in classes], trial(images.z[label >= 0], label[label >= 0], {**far, "near": others})


def main() -> None:
    """Print one row per setting, AUROC / FPR95 of the recommended detector in percent."""
    arguments = command.parse(command.parser(__doc__, features=True, resumes=True))
    command.run_and_print(cases(list(tasks(arguments.folder))), arguments, table)


def cases(everything: list[tuple[str, list[str], Trial]]) -> Iterator[Case]:
    """Yield one case per setting and task."""
    for words, negatives in SETTINGS:
        for title, names, stream in everything:
            key = {"words": words, "negatives": negatives, "task": title}
            yield Case(key, partial(rank, words, negatives, names, stream))


def rank(words: int, negatives: int, names: list[str], stream: Trial) -> Row:
    """The metrics of the recommended detector with so many words read and negatives kept."""
    space = LabelSpace.build(names, offline_encoder(), negatives=negatives, corpus=wordnet().thinned(words))
    metrics = evaluate(detectors.make(detectors.DEFAULT, space), stream).metrics
    return {name: 100 * metrics[name] for name in ("margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id")}


@cache
def offline_encoder() -> Encoder:
    return load_encoder("offline")


def table(rows: list[Row]) -> Iterator[str]:
    titles = list(dict.fromkeys(row["task"] for row in rows))
    lines = (
        (
            f"{words:,}" if words else "all",
            f"{negatives:,}",
            *(f"{r['auroc']:.1f} / {r['fpr95_id']:.1f}" for r in group),
        )
        for (words, negatives), group in grouped(rows, "words", "negatives").items()
    )
    return markdown_table(("words read", "negatives", *titles), lines)


if __name__ == "__main__":
    main()
