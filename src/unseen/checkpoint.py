"""A running state <-> one safetensors file, written to a temporary name and renamed; its label space lies beside it.

Beside `state.safetensors` lies `state.space.safetensors`. After an edit of the names, `state.edits` keeps the label
spaces that a state may still need, by fingerprint.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from unseen.detectors.state import flatten, unflatten
from unseen.errors import StateError
from unseen.labels import LabelSpace
from unseen.storage.files import load_tensors, save_tensors
from unseen.version import __version__

KIND = "state"
VERSION = 5  # of the file; unseen 0.1 wrote no version, 2 had no reservoir, 4 other thresholds and another `pooled`
OLD_THRESHOLDS = 4  # the last version whose thresholds knew the stream in another way: they begin anew
DEFAULT_EVERY = {64: 128}  # samples between two updates of a threshold: the default of 0.1, and today's
SETTINGS = {"recall", "warmup", "every", "window", "threshold"}  # of thresholds, then and now


class OtherVersionError(StateError):
    """A state that is sound, and that only another version can read."""


class Checkpoint(NamedTuple):
    """What a file holds: the tensors of each named state, and what they belong to."""

    states: dict[str, dict[str, Tensor]]
    identity: dict[str, Any]
    version: int = VERSION  # of the file
    written_by: str = ""  # version of unseen that wrote it, "" before 0.2


def save(path: str | Path, states: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Write named states (None or NamedTuples, nested or not, of tensors) with what they belong to."""
    tensors = {f"{name}.{field}": tensor for name, state in states.items() for field, tensor in flat(state).items()}
    header = json.dumps({"version": VERSION, "unseen": __version__, **identity}, sort_keys=True, default=_by_name)
    save_tensors(path, tensors, kind=KIND, header=header)


def to_bytes(states: Mapping[str, Any], identity: Mapping[str, Any]) -> bytes:
    """What `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        save(path := Path(folder) / "state.safetensors", states, identity)
        return path.read_bytes()


def load(source: str | Path | bytes) -> Checkpoint:
    """What a file, or its bytes, hold; states of unseen 0.1 are translated or refused."""
    if isinstance(source, bytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            path.write_bytes(source)
            return load(path)
    tensors, header = load_tensors(source, kind=KIND)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, field = key.split(".", 1)
        states.setdefault(name, {})[field] = tensor
    return _in_current_format(Checkpoint(states, json.loads(header)))


def space_path(state: Path) -> Path:
    """Where the label space of a state lies."""
    return state.with_suffix(".space.safetensors")


def features_folder(state: Path) -> Path:
    """Where `detect` keeps the vectors of the images that a state has seen."""
    return state.with_suffix(".features")


def edits_folder(state: Path) -> Path:
    """The folder with what edits of a state need to be undone."""
    return state.with_suffix(".edits")


def kept_space_path(state: Path, fingerprint: str) -> Path:
    """Where edits of a state keep a label space."""
    return edits_folder(state) / f"{fingerprint[:16]}.space.safetensors"


def find_space(state: str | Path | bytes) -> LabelSpace:
    """The label space of a state: the one beside it, or, after a crash or an undone edit, that of its edits."""
    if isinstance(state, bytes):
        raise StateError("expected a label space for a state in bytes, got none; pass Session.load(data, labels)")
    state = Path(state)
    if not (path := space_path(state)).exists():
        raise StateError(f"expected the label space of {state} at {path}, got no file; put it there, or pass it")
    space = LabelSpace.load(path)
    if not edits_folder(state).exists():
        return space
    wanted = load(state).identity["labels"]
    if space.fingerprint == wanted or not (other := kept_space_path(state, wanted)).exists():
        return space
    return LabelSpace.load(other)


def flat(state: Any) -> dict[str, Tensor]:
    """A state's tensors by dotted name, each with memory of its own; a dict of tensors is flat as it is."""
    return {name: tensor.clone() for name, tensor in (state if isinstance(state, dict) else flatten(state)).items()}


def restore_state(start: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A state of the kind of `start` from saved tensors; refuse other fields, shapes or dtypes."""
    expected = flatten(start)
    kinds, found = ({name: (x.dtype, x.shape) for name, x in side.items()} for side in (expected, tensors))
    if wrong := sorted(name for name in kinds.keys() | found.keys() if kinds.get(name) != found.get(name)):
        raise StateError(f"expected a state with {sorted(expected)}, got a difference in {wrong}; pass the right file")
    # copied, because a file maps to unaligned memory, where a matrix product rounds differently
    return unflatten(start, {name: tensors[name].clone().to(part.device) for name, part in expected.items()})


def check_identity(expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that belongs to something else."""
    for what, value in expected.items():
        if json.loads(json.dumps(value, default=_by_name)) != got.get(what):
            with_what = "load the label space" if what == "labels" else "use the settings"
            raise StateError(
                f"expected a state of {what} {value}, got one of {got.get(what)}; {with_what} it was learned with"
            )


def _in_current_format(found: Checkpoint) -> Checkpoint:
    """A checkpoint in the words of this version; refuse one that only another version can read."""
    version, written_by = found.identity.pop("version", 1), found.identity.pop("unseen", "")
    if version > VERSION:
        raise OtherVersionError(f"expected a state of version {VERSION} or before, got {version}; upgrade unseen")
    if version > OLD_THRESHOLDS:
        return found._replace(written_by=written_by)
    detector, rule = found.identity.get("detector"), found.identity.get("threshold")
    if detector in ("default", "pooled") or rule not in ("adaptive", "fixed"):
        what = f"{detector!r}" if rule in ("adaptive", "fixed") else f"{detector!r} with the threshold {rule!r}"
        raise OtherVersionError(
            f"expected a state that this version can read, got one of {what} as unseen {written_by or '0.1'} wrote it; "
            "start a new state, or go on with the unseen that wrote this one"
        )
    settings = {name: value for name, value in found.identity["threshold_settings"].items() if name in SETTINGS}
    if "cut" in found.identity["threshold_settings"]:
        settings["threshold"] = found.identity["threshold_settings"]["cut"]
    if rule == "adaptive":
        settings |= {"in_nats": False, "every": DEFAULT_EVERY.get(settings["every"], settings["every"])}
    states = {name: part for name, part in found.states.items() if name != "threshold"}
    return Checkpoint(states, found.identity | {"threshold_settings": settings}, version)


def _by_name(value: Any) -> str:
    return str(getattr(value, "__qualname__", value))
