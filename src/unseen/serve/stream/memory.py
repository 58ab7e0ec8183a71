"""How much memory a stream will take, known before it is made."""

import json
from functools import lru_cache
from itertools import product

import torch
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.detectors.state import flatten
from unseen.errors import ServiceError, UnseenError
from unseen.serve.settings import Limits
from unseen.serve.stream.config import UNFIT, StreamConfig
from unseen.session import Session

WIDTHS = (8, 16, 24)  # of the small label spaces that a state is measured on
FEW, MORE = 20, 21  # names of each side: from 16 on, sizes grow linearly with them
SIDES = ((FEW, FEW), (MORE, FEW), (FEW, MORE))


def session_bytes(session: Session) -> int:
    """The bytes of everything a session has learned, and of the images that it may keep."""
    tensors = [tensor for state in session.snapshot for tensor in flatten(state).values()]
    return session.reservoir.byte_limit + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def state_bytes(config: StreamConfig, labels: LabelSpace) -> int:
    """The bytes that the state of a stream will take.

    They grow linearly with the names of each side and at most with the square of the width, so nine small label spaces
    give the size for a large one.
    """
    known, negative = len(labels.names), len(labels.negatives)
    try:
        sizes = _sizes(config.recipe, labels.id_anchors.dtype)
    except (UnseenError, *UNFIT):
        return 0  # settings that do not work at all, which `StreamConfig.check` says better
    few, more_known, more_negative = (_at_width([sizes[side, dim] for dim in WIDTHS], labels.dim) for side in SIDES)
    return int(few + (known - FEW) * (more_known - few) + (negative - FEW) * (more_negative - few))


def check_names(labels: LabelSpace, limits: Limits) -> None:
    """Refuse a label space of too many names or too long ones, however it came: answers repeat them."""
    for what, names, most in (("names", labels.names, limits.names), ("negatives", labels.negatives, limits.negatives)):
        if len(names) > most:
            raise ServiceError(413, f"expected at most {most:,} {what}, got {len(names):,}; leave some out", "names")
        if (longest := max(map(len, names), default=0)) > limits.name:
            raise ServiceError(
                413, f"expected {what} of at most {limits.name} characters, got {longest:,}; shorten them", "names"
            )


@lru_cache(64)
def _sizes(recipe: str, dtype: torch.dtype) -> dict[tuple[tuple[int, int], int], int]:
    """The bytes of the states of small label spaces, by names of each side and width."""
    config = StreamConfig("", "", "", *json.loads(recipe))
    return {(side, dim): _measured(config, *side, dim, dtype) for side, dim in product(SIDES, WIDTHS)}


def _measured(config: StreamConfig, known: int, negative: int, dim: int, dtype: torch.dtype) -> int:
    generator = torch.Generator().manual_seed(0)
    anchors = normalize(torch.randn(known + negative, dim, generator=generator, dtype=torch.float64), dim=-1).to(dtype)
    names = [f"name {number}" for number in range(known + negative)]
    space = LabelSpace(tuple(names[:known]), tuple(names[known:]), anchors[:known], anchors[known:])
    session = config.spec(space).build()
    session.observe(anchors[:1])
    return session_bytes(session)


def _at_width(sizes: list[int], dim: int) -> float:
    """The parabola through the sizes at WIDTHS, at another width."""
    total = 0.0
    for here, size in zip(WIDTHS, sizes, strict=True):
        term = float(size)
        for other in WIDTHS:
            term *= (dim - other) / (here - other) if other != here else 1
        total += term
    return total
