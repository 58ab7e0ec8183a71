"""How many words `unseen detect` should read, and how many negatives it should keep: the table of docs/detect.md.

python benchmarks/vocabulary.py ../shared/clip-b16

Image features are real CLIP; names and negatives go through the offline text tower (`unseen models fetch offline`).
Every setting encodes its words once, about 280 a second, and all of them take eight minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from unseen import LabelSpace, detectors, load_encoder
from unseen.evaluate import evaluate
from unseen.features import Features, load_features
from unseen.labels import wordnet
from unseen.trial import Trial

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
    """Return known and unknown samples in one random order."""
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
    """Return some classes as known names and images of others among the unknown."""
    assert images.labels is not None
    place = {label: i for i, label in enumerate(classes)}
    label = torch.tensor([place.get(label, -1) for label in images.labels.tolist()])
    others = images.z[label < 0]
    others = others[:: len(others) // near][:near]
    return [names[i] for i in classes], trial(images.z[label >= 0], label[label >= 0], {**far, "near": others})


def main() -> None:
    """Print one row per setting, AUROC / FPR95 of the default detector in percent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    everything = list(tasks(parser.parse_args().features))
    encoder = load_encoder("offline")
    print(f"| words read | negatives | {' | '.join(title for title, _, _ in everything)} |")
    for words, negatives in SETTINGS:
        cells = []
        for _, names, stream in everything:
            space = LabelSpace.build(names, encoder, negatives=negatives, corpus=wordnet().thinned(words))
            metrics = evaluate(detectors.make("default", space), stream).metrics
            cells.append(f"{100 * metrics['auroc']:.1f} / {100 * metrics['fpr95_id']:.1f}")
        print(f"| {f'{words:,}' if words else 'all'} | {negatives:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
