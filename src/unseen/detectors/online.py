"""Algorithm 1: prototypes that start as text and learn, online and without labels, where images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.detectors.merging import Rule, added, merged_bank
from unseen.gate import Text, decaying_steps, neglabel, read_text, settled
from unseen.odds import energy, logit, logits, top
from unseen.scan import scan


class Banks(NamedTuple):
    """Moving prototypes of the known and the unknown side, and how many samples taught each."""

    id_bank: Float[Tensor, "K d"]
    ood_bank: Float[Tensor, "L d"]
    id_seen: Int[Tensor, ""]
    ood_seen: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class Online(Detector[Banks]):
    """Learn both banks from samples the frozen text is sure of, and score by Eq. 14."""

    tau: float = 0.01
    kappa: float = 0.05
    rho: float = 0.1
    beta: float = 0.95

    name: ClassVar[str] = "online"
    needs_negatives: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive(tau=self.tau, kappa=self.kappa)
        in_range("rho", self.rho, 0, 100)
        in_range("beta", self.beta, 0.5, 1, low_open=True)

    def start(self) -> Banks:
        """Return both banks as frozen text (Eq. 15)."""
        none = torch.zeros((), dtype=torch.int64, device=self.labels.id_anchors.device)
        return Banks(self.labels.id_anchors, self.labels.ood_anchors, none, none)

    def read(self, state: Banks, z: Float[Tensor, "T d"]) -> Reading:
        """Score a block with the banks as they are (Eq. 14)."""
        known = top(logits(z, state.id_bank, tau=self.tau))
        return Reading.frozen(known.energy - energy(logits(z, state.ood_bank, tau=self.tau)), known.label)

    def learn(self, state: Banks, z: Float[Tensor, "T d"]) -> tuple[Reading, Banks]:
        """Learn from a block in order and score each sample after its own update (Algorithm 1)."""
        text = read_text(self.labels, z, tau=self.tau)
        trust = settled(neglabel, text, self.labels, z, tau=self.tau, bound=logit(self.beta))
        return self.taught(state, z, text, trust)

    def taught(
        self, state: Banks, z: Float[Tensor, "T d"], text: Text, trust: Float[Tensor, " T"]
    ) -> tuple[Reading, Banks]:
        """Learn and score by the given trust: logit(beta) and more teaches known, its negative and less unknown."""
        bound = logit(self.beta)
        known, unknown = trust >= bound, trust <= -bound
        id_step, id_seen = decaying_steps(known, state.id_seen, rho=self.rho, dtype=z.dtype)
        ood_step, ood_seen = decaying_steps(unknown, state.ood_seen, rho=self.rho, dtype=z.dtype)
        id_read, id_bank = scan(state.id_bank, text.known, z, id_step, kappa=self.kappa, tau=self.tau)
        ood_read, ood_bank = scan(state.ood_bank, text.negative, z, ood_step, kappa=self.kappa, tau=self.tau)
        route = known.to(torch.int8) - unknown.to(torch.int8)
        return (
            Reading.of(id_read.energy - ood_read.energy, id_read.label, route),
            Banks(id_bank, ood_bank, id_seen, ood_seen),
        )

    def _merged(self, start: Banks, ends: Sequence[Banks], rule: Rule) -> Banks:
        id_taught, ood_taught = ([end[side] - start[side] for end in ends] for side in (2, 3))
        return Banks(
            merged_bank(start.id_bank, [end.id_bank for end in ends], id_taught, rule=rule),
            merged_bank(start.ood_bank, [end.ood_bank for end in ends], ood_taught, rule=rule),
            added(start.id_seen, [end.id_seen for end in ends]),
            added(start.ood_seen, [end.ood_seen for end in ends]),
        )
