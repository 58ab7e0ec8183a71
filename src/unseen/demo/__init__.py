"""A small real stream inside the package: images, their features and names, so that nothing is downloaded.

`tools/build_demo.py` makes it. Known are the six animals of CIFAR-10; its vehicles, handwritten digits and clothes are
not. Features and text vectors come from the offline encoder. The truth is read by the laboratory: `unseen_bench.demo`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from unseen.discover import Vocabulary
from unseen.labels import LabelSpace
from unseen.labels.space import Origin
from unseen.storage.files import load_tensors

KIND = "demo-pack"
PACK = Path(__file__).with_name("pack.safetensors")
WORDS = Path(__file__).with_name("words.safetensors")


@dataclass(frozen=True, eq=False)
class Pack:
    """A label space, and for each sample its features, a key and a JPEG.

    >>> load().shuffled(seed=0)[:2].z.shape
    torch.Size([2, 512])
    """

    space: LabelSpace
    z: Float[Tensor, "T d"]
    keys: tuple[str, ...]
    thumbnails: tuple[bytes, ...]
    about: dict[str, str]

    def __getitem__(self, order: Int[Tensor, " S"] | slice) -> Pack:
        places = torch.arange(len(self.keys))[order].tolist()
        keys, thumbnails = (tuple(column[i] for i in places) for column in (self.keys, self.thumbnails))
        return Pack(self.space, self.z[places], keys, thumbnails, self.about)

    def shuffled(self, seed: int = 0) -> Pack:
        """The pack in a random order."""
        return self[torch.randperm(len(self.keys), generator=torch.Generator().manual_seed(seed))]


@cache
def vocabulary() -> Vocabulary:
    """Words that groups of the demo may be called by: ImageNet's names and a few everyday words."""
    tensors, text = load_tensors(WORDS, kind="demo-words")
    return Vocabulary(tuple(json.loads(text)["words"]), normalize(tensors["vectors"].float(), dim=-1))


@cache
def load() -> Pack:
    """The pack in the order of its classes; shuffle it before use."""
    tensors, text = load_tensors(PACK, kind=KIND)
    header = json.loads(text)
    space = LabelSpace(
        tuple(header["names"]),
        tuple(header["negatives"]),
        tensors["id_anchors"],
        tensors["ood_anchors"],
        **{field: header[field] for field in ("prompt", "encoder", "manifest")},
        origins=tuple(Origin(*origin) for origin in header["origins"]),
    )
    # stored in float16 they are unit to three digits only
    z = normalize(tensors["z"].float(), dim=-1)
    return Pack(space, z, tuple(header["keys"]), _thumbnails(tensors), header["about"])


def _thumbnails(tensors: dict[str, Tensor]) -> tuple[bytes, ...]:
    data, ends = tensors["thumbnails"].numpy().tobytes(), tensors["thumbnail_ends"].tolist()
    return tuple(data[start:end] for start, end in zip([0, *ends], ends, strict=False))
