"""The equations, one sample at a time: the reference every other backend is tested against."""

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.odds import top
from unseen.scan.base import Scan, joined


def scan(
    bank: Float[Tensor, "C d"],
    target_logits: Float[Tensor, "T C"],
    z: Float[Tensor, "T d"],
    step: Float[Tensor, " T"],
    *,
    kappa: float,
    tau: float,
) -> Scan:
    """Learn from each sample in order and read it with the bank as it stands right after (Eq. 7, 8, 12-14)."""
    reads = [top(bank[:0, :0].new_empty(0, bank.shape[0]))]
    for t in range(z.shape[0]):
        if step[t] > 0:
            bank = update(bank, z[t], torch.softmax(target_logits[t], dim=0), step[t], kappa=kappa)
        reads.append(top((bank @ z[t] / tau).unsqueeze(0)))
    return Scan(joined(reads), bank)


def update(
    bank: Float[Tensor, "C d"], z: Float[Tensor, " d"], target: Float[Tensor, " C"], step: Tensor, *, kappa: float
) -> Float[Tensor, "C d"]:
    """The bank after one gradient step on Eq. 7 and normalisation of its rows (Eq. 8)."""
    gradient = torch.outer(torch.softmax(bank @ z / kappa, dim=0) - target, z) / kappa
    return torch.nn.functional.normalize(bank - step * gradient, dim=-1)
