"""Which negatives a first job should have: relatives of its names, everyday words, far words.

    python benchmarks/vocabulary.py ../shared/clip-b16             # the table of docs/results.md
    python benchmarks/vocabulary.py ../shared/clip-b16 --jobs 40 --rows rows.jsonl

A job has 12 names of ImageNet drawn at random among those that WordNet has, or, as a family, 12 kinds of one thing.
Known are all 60 images of them; near unknown those of the 24 other classes whose real CLIP text is nearest to a name;
far unknown 220 images of other classes, textures, scenes and flowers. Image features are real CLIP; names and
negatives go through the offline text tower (`unseen models fetch offline`). Figures are AUROC of near and of far images
in percent, means over jobs, of frozen NegLabel in one group and of the recommended detector as images arrive.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from families import FAMILIES
from unseen import LabelSpace, detectors, load_encoder
from unseen.detectors import NegLabel
from unseen.features import load_features
from unseen.vocabulary import hierarchy
from unseen_bench.evaluate import evaluate
from unseen_bench.run import Case, Row, command, grouped, markdown_table
from unseen_bench.trial import Trial

SETTINGS = {  # relatives, everyday words, far words
    "1,500 everyday": (0, 1_500, 0),
    "150 relatives of each": (1_800, 0, 0),
    "relatives, 500 everyday": (1_800, 500, 0),
    "relatives, 1,500 everyday": (1_800, 1_500, 0),
    "relatives, 1,500 everyday, 500 far": (1_800, 1_500, 500),
}
FILES = ("images-imagenet_val5.safetensors", "text-imagenet1k.safetensors")
KINDS = ("dogs", "birds", "food")
NAMES, FAR = 12, 220
FAR_SETS = {"textures10": 24, "intel_scenes": 60, "flowers102": 38}  # every n-th image


class Job(NamedTuple):
    """Names and a stream of known, near and far images."""

    names: list[str]
    trial: Trial


class Store(NamedTuple):
    """What jobs are drawn from."""

    names: list[str]
    text: Float[Tensor, "K d"]
    z: Float[Tensor, "n d"]
    label: Tensor
    far: Float[Tensor, "m d"]

    @classmethod
    @cache
    def read(cls, folder: Path) -> Store:
        """Read the stored features."""
        images, text = (load_features(folder / name) for name in FILES)
        far = [load_features(folder / f"images-{name}.safetensors").z[::step] for name, step in FAR_SETS.items()]
        return cls(list(text.keys), text.z, images.z, images.true_labels, torch.cat(far))

    def job(self, seed: int, family: str | None = None) -> Job:
        """The job of a seed."""
        chance = random.Random(seed)
        pool = FAMILIES[family] if family else [row for row, name in enumerate(self.names) if hierarchy().find(name)]
        known = chance.sample(pool, NAMES)
        cosine = (self.text @ self.text[known].T).amax(1)
        cosine[known] = -1
        order = cosine.argsort(descending=True).tolist()[: len(self.names) - NAMES]
        near, rest = order[: 2 * NAMES], order[len(order) // 4 :]
        far = torch.cat([self.far, self.images(chance.sample(rest, 20))])
        far = far[torch.randperm(len(far), generator=torch.Generator().manual_seed(seed))[:FAR]]
        parts = [self.images(known), self.images(near), far]
        label = torch.cat(
            [torch.arange(NAMES).repeat_interleave(len(parts[0]) // NAMES), torch.full((len(parts[1]) + FAR,), -1)]
        )
        source = torch.arange(3).repeat_interleave(torch.tensor([len(part) for part in parts]))
        trial = Trial(torch.cat(parts), label, source, ("known", "near", "far")).ordered("shuffled", seed=seed)
        return Job([self.names[row] for row in known], trial)

    def images(self, classes: list[int]) -> Float[Tensor, "n d"]:
        """The images of some classes, in the order of these."""
        return torch.cat([self.z[self.label == row] for row in classes])


def main() -> None:
    """Print one row per setting."""
    parser = command.parser(__doc__, features=True, resumes=True)
    parser.add_argument("--jobs", type=int, default=20, help="how many of each kind (20)")
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: command.Arguments) -> Iterator[Case]:
    """Yield one case per setting and job."""
    for setting in SETTINGS:
        for kind in ("any", *KINDS):
            for seed in range(arguments.jobs if kind == "any" else arguments.jobs // 4):
                key = {"negatives": setting, "names": kind, "seed": seed}
                yield Case(key, partial(measure, arguments.folder, setting, kind, seed))


def measure(folder: Path, setting: str, kind: str, seed: int) -> Row:
    """Both figures of both detectors on one job."""
    job = Store.read(folder).job(seed, None if kind == "any" else kind)
    space = label_space(job.names, SETTINGS[setting])
    row: Row = {"words": len(space.negatives)}
    for name, detector in (
        ("neglabel", NegLabel(space, groups=1)),
        ("pooled", detectors.make(detectors.DEFAULT, space)),
    ):
        found = evaluate(detector, job.trial).by_source
        row |= {f"{name} {which}": 100 * found[which]["margin_auroc"] for which in ("near", "far")}
    return row


def label_space(names: list[str], counts: tuple[int, int, int]) -> LabelSpace:
    """The names with so many negatives of each kind."""
    relatives, everyday, far = counts
    return LabelSpace.build(names, offline_encoder(), relatives=relatives, everyday=everyday, far=far)


offline_encoder = cache(partial(load_encoder, "offline"))


def table(rows: list[Row]) -> Iterator[str]:
    columns = ["words", *(f"{name} {which}" for name in ("neglabel", "pooled") for which in ("near", "far"))]
    lines = (
        (setting, kind, *(f"{fmean(row[column] for row in some):,.1f}" for column in columns))
        for (setting, kind), some in grouped(rows, "negatives", "names").items()
    )
    return markdown_table(("negatives", "names", *columns), lines)


if __name__ == "__main__":
    main()
