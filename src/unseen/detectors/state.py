"""States are None or NamedTuples of tensors and of further NamedTuples: what works on all their tensors."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

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
