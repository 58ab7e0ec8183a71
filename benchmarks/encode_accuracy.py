"""What eight bits cost: zero-shot accuracy and AUROC of the offline tower in int8 against bfloat16, on labelled photos.

    python benchmarks/encode_accuracy.py ../shared/images/eval-imagenet-val5.tar ../shared/clip-b16

Names and negatives are CLIP's own text. Accuracy is over all 1,000 ImageNet names; AUROC is that of the recommended
detector on the near set of imagenet200, whose unknown images are photos of other classes. Left out are photos from
which the ranges of int8 were measured (every 40th) and those whose class the text spells otherwise, ignoring case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen import LabelSpace, detectors, load_encoder
from unseen.bench import Row, command
from unseen.bench.command import Arguments
from unseen.evaluate import evaluate
from unseen.features import load_features
from unseen.images import find_images, read_entries
from unseen.trial import Trial

CALIBRATION = 40  # every n-th photo set the ranges
PRECISIONS = {"bfloat16": torch.bfloat16, "int8": torch.int8}


class Photos(NamedTuple):
    """Labelled photos as vectors."""

    z: Float[Tensor, "n d"]
    label: Int[Tensor, " n"]


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("photos", help="a .tar or a folder with the name of the class of each photo")
    parser.add_argument("folder", type=Path, help="stored text features and suites.json")
    parser.add_argument("--every", type=int, default=1, help="read every n-th photo (1)")
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    text = load_features(arguments.folder / "text-imagenet1k.safetensors")
    found = {name: encoded(arguments, kind, list(text.keys)) for name, kind in PRECISIONS.items()}
    reference = found["bfloat16"].z
    for name, photos in found.items():
        right = (photos.z @ text.z.T).argmax(1) == photos.label
        yield {
            "precision": name,
            "photos": len(photos.z),
            "accuracy %": 100 * float(right.float().mean()),
            "near AUROC %": near_auroc(arguments.folder, photos),
            "mean cosine": float((photos.z * reference).sum(1).mean()),
            "least cosine": float((photos.z * reference).sum(1).min()),
        }


def encoded(arguments: Arguments, dtype: torch.dtype, classes: list[str]) -> Photos:
    """Return the photos that can judge, as vectors."""
    encoder = load_encoder("offline", dtype=dtype)
    number = {name.lower(): i for i, name in enumerate(classes)}
    entries = [one for i, one in enumerate(find_images([arguments.photos])) if i % CALIBRATION]
    z, label = [], []
    for batch in read_entries(entries[:: arguments.every], size=64):
        images = [image for image in batch.images if (image.label or "").lower() in number]
        z.append(encoder.images(images))
        label += [number[str(image.label).lower()] for image in images]
    return Photos(torch.cat(z).float().cpu(), torch.tensor(label))


def near_auroc(folder: Path, photos: Photos) -> float:
    """Return the AUROC of the recommended detector on imagenet200, photos of other classes unknown."""
    suite = json.loads((folder / "suites.json").read_text())["imagenet200"]
    place = {name: i for i, name in enumerate(suite["id_classes"])}
    label = torch.tensor([place.get(name, -1) for name in photos.label.tolist()])
    used = (label >= 0) | torch.isin(photos.label, torch.tensor(suite["near_ood_classes"]))
    source = (label < 0).long()
    trial = Trial(photos.z[used], label[used], source[used], ("known", "near"))
    detector = detectors.make(detectors.DEFAULT, label_space(folder, suite))
    return 100 * evaluate(detector, trial.ordered("shuffled", seed=0)).metrics["auroc"]


def label_space(folder: Path, suite: dict[str, list[int]]) -> LabelSpace:
    names, others = (load_features(folder / f"text-{part}.safetensors") for part in ("imagenet1k", "other-names"))
    chosen = suite["id_classes"], suite["negative_imagenet_classes"], suite["negative_other_names"]
    sides = [(part.keys, part.z, rows) for part, rows in zip((names, names, others), chosen, strict=True)]
    words = [[keys[i] for i in rows] for keys, _, rows in sides]
    vectors = [z[rows] for _, z, rows in sides]
    return LabelSpace(tuple(words[0]), tuple(words[1] + words[2]), vectors[0], torch.cat(vectors[1:]))


if __name__ == "__main__":
    main()
