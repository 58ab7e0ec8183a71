"""Verdicts in label spaces that nothing was chosen on: names, negatives and images drawn at random.

    python benchmarks/label_spaces.py FOLDER --spaces 20 --first-space 1000  # three sets and orders of each
    python benchmarks/label_spaces.py FOLDER --rows rows.jsonl --json        # one object per stream; resumes

A space has 5 to 400 names of ImageNet. Its images are ImageNet photographs or those of Tiny-ImageNet (64 pixels); its
negatives are other names of ImageNet, names of other data sets, both, or surrogates, which are no text of the model.
Near unknown images are of classes that are neither names nor negatives. Columns and goals are those of verdicts.py.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from stored_suites import ORDERS
from unseen import LabelSpace, Session
from unseen.features import Features, load_features
from unseen_bench.evaluate import evaluate
from unseen_bench.run import Case, Row, command, grouped
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial
from verdicts import figures, frozen_scores, goal_lines, stream_table

FAR = ("textures10", "intel_scenes", "flowers102", "mnist")
NAMES = {"imagenet_val5": (10, 20, 50, 100, 200, 400), "tin_val": (5, 10, 20, 50, 100, 150)}  # by images
NEGATIVES = ("imagenet", "imagenet+other", "other", "surrogate")
NEAR = 50  # classes of near unknown images
MOST = 2000  # images of a side


class Draw(NamedTuple):
    """What was drawn: which images, how many names, which negatives."""

    images: str
    names: int
    negatives: str

    @classmethod
    def of(cls, space: int) -> Draw:
        """What the space of this number is made of."""
        chance = random.Random(space)
        images = chance.choice(sorted(NAMES))
        return cls(images, chance.choice(NAMES[images]), chance.choice(NEGATIVES))

    @property
    def title(self) -> str:
        """It in words."""
        kind = "surrogate negatives" if self.negatives == "surrogate" else "CLIP's text"
        return f"{self.images}, {kind}"


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True)
    parser.add_argument("--spaces", type=int, default=20, help="how many (20)")
    parser.add_argument("--first-space", type=int, default=1000, help="where to begin (1000)")
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, tables)


def cases(arguments: Arguments) -> Iterator[Case]:
    for space in range(arguments.first_space, arguments.first_space + arguments.spaces):
        draw = Draw.of(space)
        for name in ("near", *random.Random(space + 1).sample(FAR, 2)):
            for order in ORDERS:
                key = {"suite": draw.title, "set": name, "order": order, "seed": space, **draw._asdict()}
                yield Case(key, functools.partial(judge, space, name, order, arguments.folder))


def judge(space: int, name: str, order: str, folder: Path) -> Row:
    """Every figure of one stream."""
    labels, pool = drawn(space, name, folder)
    trial = pool.ordered(order, space)
    return figures(evaluate(Session(labels), trial), name, labels, frozen_scores(labels, trial.z))


def drawn(space: int, name: str, folder: Path) -> tuple[LabelSpace, Trial]:
    """The label space of this number, and its known images with those of an unknown set."""
    draw, generator = Draw.of(space), torch.Generator().manual_seed(space)
    text, images = features(folder, "text-imagenet1k"), features(folder, f"images-{draw.images}")
    truth = imagenet_classes(images, text)[images.true_labels]
    shuffled = shuffled_classes(truth, generator)
    known, near, rest = shuffled.split([draw.names, NEAR, len(shuffled) - draw.names - NEAR])
    negatives = negatives_of(draw.negatives, rest, folder)
    labels = LabelSpace(
        tuple(f"known {i}" for i in range(draw.names)),
        tuple(f"negative {i}" for i in range(len(negatives))),
        text.z[known],
        negatives,
    )
    place = torch.full((len(text.z),), -1)
    place[known] = torch.arange(len(known))
    rows = thinned((place[truth] >= 0).nonzero().squeeze(1), generator)
    unknown = images.z[torch.isin(truth, near)] if name == "near" else features(folder, f"images-{name}").z
    unknown = unknown[thinned(torch.arange(len(unknown)), generator)]
    label = torch.cat([place[truth[rows]], torch.full((len(unknown),), -1)])
    return labels, Trial(torch.cat([images.z[rows], unknown]), label, (label < 0).long(), ("known", name))


def shuffled_classes(truth: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " C"]:
    """All classes of ImageNet in random order, those with images first."""
    with_images = truth.unique()
    others = torch.tensor(sorted(set(range(1000)) - set(with_images.tolist())), dtype=torch.long)
    return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in (with_images, others)])


def imagenet_classes(images: Features, text: Features) -> Int[Tensor, " C"]:
    """The number in ImageNet of each class of the images, which are called by number or by WordNet id."""
    wnids = json.loads(text.metadata["wnids"])
    return torch.tensor([int(name) if name.isdigit() else wnids.index(name) for name in images.classes])


def negatives_of(kind: str, rest: Int[Tensor, " n"], folder: Path) -> Tensor:
    """The anchors of the negatives."""
    if kind == "surrogate":
        return features(folder, "text-surrogate-negatives").z
    names, other = features(folder, "text-imagenet1k").z[rest], features(folder, "text-other-names").z
    return {"imagenet": names, "other": other, "imagenet+other": torch.cat([names, other])}[kind]


def thinned(rows: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " m"]:
    return rows[torch.randperm(len(rows), generator=generator)[:MOST]]


@functools.cache
def features(folder: Path, name: str) -> Features:
    return load_features(folder / f"{name}.safetensors", unit=False)


def tables(rows: list[Row]) -> Iterator[str]:
    yield from stream_table(rows, sets_in=())
    for (suite,), group in grouped(rows, "suite").items():
        yield f"\n{suite}:\n"
        yield from goal_lines(group)


if __name__ == "__main__":
    main()
