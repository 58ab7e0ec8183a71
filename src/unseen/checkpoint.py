"""A running state <-> one safetensors file, written to a temporary name and renamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unseen.errors import StateError
from unseen.storage.files import load_tensors, save_tensors

KIND = "state"


def save(path: str | Path, states: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Write named states (None or NamedTuples of tensors) with what they belong to."""
    tensors = {f"{name}.{field}": tensor for name, state in states.items() for field, tensor in flat(state).items()}
    save_tensors(path, tensors, kind=KIND, header=json.dumps(identity, sort_keys=True, default=_by_name))


def load(path: str | Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the tensors of each named state and what they belong to."""
    tensors, header = load_tensors(path, kind=KIND)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, field = key.split(".", 1)
        states.setdefault(name, {})[field] = tensor
    return states, json.loads(header)


def flat(state: Any) -> dict[str, Tensor]:
    """Return a state's tensors by field name, each with memory of its own."""
    return {} if state is None else {field: tensor.clone() for field, tensor in state._asdict().items()}


def restored(start: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return a state of the kind of `start` from saved tensors; refuse other fields, shapes or dtypes."""
    expected = {} if start is None else start._asdict()
    kinds, found = ({name: (x.dtype, x.shape) for name, x in side.items()} for side in (expected, tensors))
    if wrong := sorted(name for name in kinds.keys() | found.keys() if kinds.get(name) != found.get(name)):
        raise StateError(f"expected a state with {sorted(expected)}, got a difference in {wrong}; pass the right file")
    if start is None:
        return None
    # cloned, because a file maps to unaligned memory, where a matrix product rounds differently
    return type(start)(**{name: tensors[name].clone().to(tensor.device) for name, tensor in expected.items()})


def agree(what: str, expected: Any, got: Any, remedy: str) -> None:
    """Refuse a checkpoint that belongs to something else."""
    if json.loads(json.dumps(expected, default=_by_name)) != got:
        raise StateError(f"expected a state of {what} {expected}, got one of {got}; {remedy}")


def _by_name(value: Any) -> str:
    return str(getattr(value, "__qualname__", value))
