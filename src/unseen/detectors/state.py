"""States are None or NamedTuples of tensors and of further NamedTuples: what works on all their tensors.

And what moves a state to another label space: rows of words go where the words have gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from unseen.labels import LabelSpace

S = TypeVar("S")


def is_state(value: object) -> bool:
    """Whether a value is None or a NamedTuple of tensors and of further NamedTuples."""
    if value is None:
        return True
    parts = [getattr(value, name) for name in getattr(value, "_fields", ())]
    return bool(parts) and all(isinstance(part, Tensor) or (part is not None and is_state(part)) for part in parts)


def map_state(function: Callable[..., Tensor], state: S, *others: S) -> S:
    """A state of the kind of `state` with `function` of the tensors of the same name in all states."""
    if state is None:
        return state
    if isinstance(state, Tensor):
        return function(state, *others)  # type: ignore[return-value]
    parts: Any = zip(state, *others, strict=True)  # type: ignore[call-overload]
    return type(state)(*(map_state(function, *part) for part in parts))


def flatten(state: Any) -> dict[str, Tensor]:
    """The tensors of a state by name; names of nested parts are joined by dots."""
    if state is None:
        return {}
    found: dict[str, Tensor] = {}
    for name, part in state._asdict().items():
        found |= {name: part} if isinstance(part, Tensor) else {f"{name}.{n}": x for n, x in flatten(part).items()}
    return found


def unflatten(like: S, tensors: dict[str, Tensor]) -> S:
    """A state of the kind of `like` from tensors by name."""
    names = map(tensors.__getitem__, flatten(like))
    return map_state(lambda _: next(names), like)


class OldPlaces(NamedTuple):
    """Where the words of a label space stood in another: names first, then negatives, -1 for a new word."""

    known: Int[Tensor, " K"]
    negative: Int[Tensor, " L"]

    @classmethod
    def of(cls, after: LabelSpace, before: LabelSpace) -> OldPlaces:
        """The places that the words of `after` had in `before`."""
        places = {word: place for place, word in enumerate((*before.names, *before.negatives))}
        device = after.id_anchors.device
        sides = ([places.get(word, -1) for word in words] for words in (after.names, after.negatives))
        return cls(*(torch.tensor(side, dtype=torch.int64, device=device) for side in sides))


def rows_by_old_place(known: Tensor, negative: Tensor, places: Int[Tensor, " n"], *, fresh: Tensor) -> Tensor:
    """The rows of words by their old places; a new word gets its row of `fresh`."""
    rows = torch.cat([known, negative, known.new_zeros(1, *known.shape[1:])])[places]
    is_new = (places < 0).view(-1, *(1,) * (known.ndim - 1))
    return torch.where(is_new, fresh, rows)
