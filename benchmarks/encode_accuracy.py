"""What eight bits and merged tokens cost: zero-shot accuracy and AUROC of the offline tower, on labelled photos.

    python benchmarks/encode_accuracy.py ../shared/images/eval-imagenet-val5.tar ../shared/clip-b16
    python benchmarks/encode_accuracy.py PHOTOS FOLDER --encoders offline offline-merge8 --keep vectors/

Names and negatives are CLIP's own text. Accuracy is over all 1,000 ImageNet names; AUROC is that of the recommended
detector on the near set of imagenet200, whose unknown images are photos of other classes. Left out are photos from
which the ranges of int8 were measured (every 40th) and those whose class the text spells otherwise, ignoring case.
The first encoder is the one that the others are compared with; a gain of accuracy is given with its standard error.
`benchmarks/encode.py` has their speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen import LabelSpace, detectors, load_encoder
from unseen.encoders import Encoder
from unseen.features import load_features
from unseen.images import Entry, find_images, read_entries
from unseen_bench.evaluate import evaluate
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

CALIBRATION = 40  # every n-th photo set the ranges
BATCH = 64
ENCODERS = ("offline", "offline-int8", "offline-merge4", "offline-merge8", "offline-int8-merge4")


class Photos(NamedTuple):
    """Labelled photos as vectors."""

    z: Float[Tensor, "n d"]
    label: Int[Tensor, " n"]

    def is_right(self, names: Float[Tensor, "K d"]) -> Float[Tensor, " n"]:
        """1 for each photo that is nearest to its own name, else 0."""
        return ((self.z @ names.T).argmax(1) == self.label).float()


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("photos", help="a .tar or a folder with the name of the class of each photo")
    parser.add_argument("folder", type=Path, help="stored text features and suites.json")
    parser.add_argument("--most", type=int, help="photos to read, drawn at random (all)")
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS))
    parser.add_argument("--keep", type=Path, help="folder that keeps vectors: a stopped run goes on")
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    text = load_features(arguments.folder / "text-imagenet1k.safetensors")
    first: Photos | None = None
    for name in arguments.encoders:
        photos = encoded(arguments, name, list(text.keys))
        first = first or photos
        gain = photos.is_right(text.z) - first.is_right(text.z)
        cosine = (photos.z * first.z).sum(1)
        yield {
            "encoder": name,
            "photos": len(photos.z),
            "accuracy %": 100 * float(photos.is_right(text.z).mean()),
            "gain": 100 * float(gain.mean()),
            "standard error": 100 * float(gain.std() / len(gain) ** 0.5),
            "near AUROC %": near_auroc(arguments.folder, photos),
            "mean cosine": float(cosine.mean()),
            "least cosine": float(cosine.min()),
        }


def encoded(arguments: Arguments, name: str, classes: list[str]) -> Photos:
    """The photos that can judge, as vectors, in a random order that is always the same."""
    encoder = load_encoder(name, dtype=None if "int8" in name else torch.bfloat16)
    number = {name.lower(): i for i, name in enumerate(classes)}
    entries = [one for i, one in enumerate(find_images([arguments.photos])) if i % CALIBRATION]
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(0)).tolist()[: arguments.most]
    parts = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    photos = []
    for i, part in enumerate(parts):
        path = arguments.keep and arguments.keep / f"{name}-{i}.safetensors"
        photos.append(kept(path, len(part), partial(encode_batch, encoder, [entries[row] for row in part], number)))
    return Photos(*map(torch.cat, zip(*photos, strict=True)))


def encode_batch(encoder: Encoder, entries: list[Entry], number: dict[str, int]) -> Photos:
    (batch,) = read_entries(entries, size=BATCH)
    images = [image for image in batch.images if (image.label or "").lower() in number]
    label = torch.tensor([number[str(image.label).lower()] for image in images])
    return Photos(encoder.images(images).float().cpu(), label)


def kept(path: Path | None, count: int, encode: Callable[[], Photos]) -> Photos:
    """A batch as vectors, read from the file where an earlier run kept it."""
    if path is None or count < BATCH:
        return encode()
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        save_file(encode()._asdict(), path)
    return Photos(**load_file(path))


def near_auroc(folder: Path, photos: Photos) -> float:
    """The AUROC of the recommended detector on imagenet200, photos of other classes unknown."""
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
