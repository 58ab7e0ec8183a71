"""What must hold for a state to be gone on from: usable numbers, and for equal bits the same arithmetic."""

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from unseen import LabelSpace
from unseen.detectors.state import flatten
from unseen.errors import StateError
from unseen.reservoir import KeptImages
from unseen.serve.settings import INSIDE
from unseen.serve.stream.config import UNFIT
from unseen.session import Session

ROWS = {"waiting": "pending", "pending.size": "pending.samples.z"}


def refuse_unusable(session: Session) -> None:
    """Refuse a state from which no stream could go on: it may come from anyone, with a checksum that is right."""
    refuse_infinite(session)
    for state in session.snapshot:
        _refuse_counts(flatten(state))
    _refuse_kept(session.reservoir.kept, session.detector.labels)
    try:
        session.at(session.snapshot).observe(session.detector.labels.id_anchors[:1].expand(INSIDE.tried, -1))
    except (LookupError, *UNFIT) as error:
        raise StateError(f"expected a state that a stream can go on from, got {error}; restore another") from error


def _refuse_kept(kept: KeptImages, labels: LabelSpace) -> None:
    """Refuse kept images of another width, of other names, or without numbers."""
    is_named = not len(kept) or 0 <= int(kept.label.min()) <= int(kept.label.max()) < len(labels.names)
    if not is_named or kept.z.shape[1] != labels.dim or not bool(kept.z.isfinite().all()):
        raise StateError(f"expected kept images of these names and width {labels.dim}, got others; restore another")


def _refuse_counts(parts: Mapping[str, Tensor]) -> None:
    """Refuse counts below 0 or above what there are rows for: as many numbers as a count says are made."""
    for name, value in parts.items():
        if value.ndim or value.is_floating_point() or value.dtype == torch.bool:
            continue
        most = next((len(rows) for rows in _counted_rows(name, parts)), INSIDE.counted)
        if not 0 <= int(value) <= most:
            raise StateError(f"expected {name} from 0 to {most:,}, got {int(value):,}; restore another")


def _counted_rows(name: str, parts: Mapping[str, Tensor]) -> list[Tensor]:
    """The rows that a count is of, where it is one of rows."""
    found = [(name.removesuffix(count), rows) for count, rows in ROWS.items() if f".{name}".endswith(f".{count}")]
    return [parts[prefix + rows] for prefix, rows in found if prefix + rows in parts]


def refuse_infinite(session: Session) -> None:
    """Refuse a state that holds numbers no stream can learn from."""
    for state in session.snapshot:
        for name, tensor in flatten(state).items():
            if tensor.is_floating_point() and not bool(_usable(tensor, name).all()):
                raise StateError(f"expected a state of finite numbers, got others in {name}; restore another")


def _usable(tensor: Tensor, name: str) -> Bool[Tensor, "..."]:
    """Which numbers a stream can learn from; the clarity of pending samples is -inf where names are few."""
    return tensor.isfinite() | (tensor == -torch.inf if name == "pending" else False)


def arithmetic() -> str:
    """What the bits of a computation depend on beside its input."""
    cores = torch.get_num_threads()
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {cores} compute thread(s)"
