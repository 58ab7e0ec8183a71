"""Fit the offline text tower's head on name / CLIP-vector pairs, and judge it on names it has not seen.

    python tools/train_text_head.py --features ../shared/clip-b16            # judge, then write the head
    python tools/train_text_head.py --features ../shared/clip-b16 --judge    # judge only; --glosses: tools/glosses.py

Real CLIP text vectors alone are fitted; image features are used for judging only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from glosses import GlossedNames, read_glosses
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline.text import (
    HEAD,
    TextHead,
    TextTower,
    fetch_text_tower,
    load_sentence_encoder,
    strip_template,
)
from unseen.features import load_features

VIEWS = ("a photo of a {}.",)
WIDTH, RIDGE, FOLDS = 0.5, 0.03, 5
IMAGE_SETS = ("cifar10", "cifar100", "intel_scenes", "textures10", "flowers102")
FLOWERS = Path(__file__).with_name("flowers102.txt")

Fit = Callable[[Int[Tensor, " m"]], TextHead]


def read_texts(folder: Path) -> tuple[list[str], Float[Tensor, "n d"], int]:
    """All names with their real CLIP vectors, and how many of them, from the first on, are ImageNet classes."""
    imagenet, others = (load_features(folder / f"text-{name}.safetensors") for name in ("imagenet1k", "other-names"))
    return [*imagenet.keys, *others.keys], torch.cat([imagenet.z, others.z]), len(imagenet)


def read_images(folder: Path, name: str) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"], list[str]]:
    """Image features, labels and class names of one set."""
    images = load_features(folder / f"images-{name}.safetensors")
    classes = list(images.classes)
    if name == "flowers102":  # the file numbers them as Oxford does
        species = FLOWERS.read_text().splitlines()
        classes = [species[int(number) - 1] for number in classes]
    return images.z, images.true_labels, classes


def fit(sentence: Float[Tensor, "n h"], target: Float[Tensor, "n d"]) -> TextHead:
    """The head that solves the ridge problem in float64 on all the given pairs."""
    centre, mean = sentence.mean(0), target.mean(0)
    support = normalize(sentence - centre, dim=-1)
    residual = (target - mean).double()
    kernel = torch.exp((support.double() @ support.double().T - 1) / WIDTH)
    coef = torch.linalg.solve(kernel + RIDGE * torch.eye(len(kernel)), residual)
    radius = float(residual.norm(dim=-1).mean())
    return TextHead(support, coef.float(), centre, mean, WIDTH, radius, VIEWS)


def accuracy(z: Float[Tensor, "n d"], labels: Int[Tensor, " n"], anchors: Float[Tensor, "K d"]) -> float:
    """The share, in percent, of images whose nearest anchor is their class."""
    return 100 * float(((z @ anchors.T).argmax(-1) == labels).double().mean())


def without(names: list[str], held: list[str]) -> Int[Tensor, " m"]:
    """The indices of the names that are not held out, whatever their case or plural."""
    gone = {_key(name) for name in held}
    return torch.tensor([i for i, name in enumerate(names) if _key(name) not in gone])


def _key(name: str) -> str:
    return name.lower().replace("_", " ").removesuffix("s")


def judge(
    folder: Path, tower: TextTower | GlossedNames, names: list[str], sentence: Tensor, target: Tensor, imagenet: int
) -> None:
    """Print cross-validated figures: every figure is for names the judged head has not been fitted on."""
    unseen = torch.empty(imagenet, target.shape[1])
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(imagenet, generator=generator)
    for fold in range(FOLDS):
        held = order[fold::FOLDS]
        kept = without(names, [names[i] for i in held.tolist()])
        unseen[held] = fit(sentence[kept], target[kept])(sentence[held])
    z, labels, _ = read_images(folder, "imagenet_val5")
    real = target[:imagenet]
    print(f"cosine to the real vector, unseen ImageNet names     {float((unseen * real).sum(-1).mean()):.3f}")
    print(f"nearest real vector is its own (of {imagenet})              {_own(unseen, real):.1f} %")
    print(f"imagenet_val5, all {imagenet} names unseen                  {accuracy(z, labels, unseen):.1f} %")
    within = [_within(z, labels, unseen, order[fold::FOLDS]) for fold in range(FOLDS)]
    print(f"imagenet_val5, {imagenet // FOLDS}-way among the held-out names      {sum(within) / FOLDS:.1f} %")
    print(f"imagenet_val5, real CLIP text (the ceiling)          {accuracy(z, labels, real):.1f} %")
    for stem in IMAGE_SETS:
        z, labels, classes = read_images(folder, stem)
        kept = without(names, classes)
        query = tower.sentence_vectors([strip_template(name) for name in classes])
        blind = accuracy(z, labels, fit(sentence[kept], target[kept])(query))
        shipped = accuracy(z, labels, fit(sentence, target)(query))
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
    settings = {"width": head.width, "radius": head.radius, "views": head.views}
    save_file(tensors, path, metadata={"settings": json.dumps(settings)})


def main() -> None:
    """Judge the fit, then fit every pair and write the head."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--features", type=Path, required=True, help="folder with text-*.safetensors, images-*.safetensors"
    )
    parser.add_argument("--judge", action="store_true", help="judge only, write nothing")
    parser.add_argument(
        "--glosses", type=Path, help="archive of WordNet: judge names with their glosses, write nothing"
    )
    parser.add_argument("-o", "--output", type=Path, default=HEAD)
    args = parser.parse_args()
    fetch_text_tower()
    names, target, imagenet = read_texts(args.features)
    empty = torch.empty(0)
    plain = TextTower(load_sentence_encoder(), TextHead(empty, empty, empty, empty, WIDTH, 0.0, VIEWS))
    tower = GlossedNames(plain, read_glosses(args.glosses)) if args.glosses else plain
    sentence = tower.sentence_vectors([strip_template(name) for name in names])
    judge(args.features, tower, names, sentence, target, imagenet)
    if not (args.judge or args.glosses):
        save(replace(fit(sentence, target)), args.output)


if __name__ == "__main__":
    main()
