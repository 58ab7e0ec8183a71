"""What must hold for a state to be gone on from: finite numbers, and for equal bits the same arithmetic."""

import torch
from jaxtyping import Bool
from torch import Tensor

from unseen.detectors.state import flatten
from unseen.errors import StateError
from unseen.session import Session


def refuse_infinite(session: Session) -> None:
    """Refuse a state that holds numbers no stream can learn from."""
    for state in session.snapshot:
        for name, tensor in flatten(state).items():
            if tensor.is_floating_point() and not bool(_usable(tensor, name).all()):
                raise StateError(f"expected a state of finite numbers, got others in {name}; restore another")


def _usable(tensor: Tensor, name: str) -> Bool[Tensor, "..."]:
    """Return which numbers a stream can learn from; the clarity of pending samples is -inf where names are few."""
    return tensor.isfinite() | (tensor == -torch.inf if name == "pending" else False)


def arithmetic() -> str:
    """Return what the bits of a computation depend on beside its input."""
    cores = torch.get_num_threads()
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {cores} compute thread(s)"
