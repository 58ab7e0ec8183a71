"""Which label space a method reads in a suite that can encode text: its own prompt, miner, count and corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from unseen.labels import LabelSpace

Options = Mapping[str, Any]

_PHOTO: tuple[Options, ...] = ({"prompt": "photo", "negatives": 0},)  # the known names alone, as MCM words them
PUBLISHED: dict[str, tuple[Options, ...]] = {  # several: their negatives together
    **dict.fromkeys(("mcm", "gl-mcm", "maxlogit", "energy", "entropy", "variance"), _PHOTO),
    **{name: ({"miner": name},) for name in ("neglabel", "csp", "adaneg", "dnm", "tanl")},
    "infoood-reconstructed": ({"miner": "neglabel"},),
    "clipscope": ({"miner": "clipscope-near"}, {"miner": "clipscope-far"}),
}


def published_space(name: str, build: Callable[[Options], LabelSpace]) -> LabelSpace | None:
    """The label space that the paper of a method describes, None where it describes none of its own."""
    if name not in PUBLISHED:
        return None
    first, *others = (build({"negatives": None, **options}) for options in PUBLISHED[name])
    for other in others:
        first = joined(first, other)
    return first


def joined(one: LabelSpace, other: LabelSpace) -> LabelSpace:
    """The names with the negatives of both; a word that both have keeps its first vector."""
    new = [place for place, word in enumerate(other.negatives) if word not in set(one.negatives)]
    return replace(
        one,
        negatives=(*one.negatives, *(other.negatives[place] for place in new)),
        ood_anchors=torch.cat([one.ood_anchors, other.ood_anchors[new]]),
        manifest=one.manifest | {f"also {key}": value for key, value in other.manifest.items()},
    )
