"""ReNeg (2026) on TANL: names near the known ones, trusted by the images they catch, and grounded in those images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors.base import Detector, DetectorOutput, above_zero, setting
from unseen.odds import energy
from unseen_bench.methods.zeroshot.tanl import TANL, Queues


class Evidence(NamedTuple):
    """The state of TANL, what each negative has caught, and the images of both sides."""

    base: Queues
    caught: Float[Tensor, " L"]  # images that are nearer to a negative than to every known name
    margin: Float[Tensor, " L"]  # the sum of how much nearer
    squares: Float[Tensor, ""]  # of all margins
    votes: Float[Tensor, " L"]  # how many of them TANL is sure are unknown
    unknown: Float[Tensor, "L d"]  # the sum of them
    known: Float[Tensor, "K d"]  # the sum of the images that text and TANL are sure show a name


@dataclass(frozen=True, eq=False)
class ReNeg(Detector[Evidence]):
    """Lower TANL's log-odds where an image is liker to the images of a trusted negative than to those of a known name.

    A negative is trusted by a lower confidence bound on how far its images lie on its side, and by how many of them
    TANL is sure are unknown. The published variant catches with 14,526 relatives of the names in 648 clusters, while
    TANL adapts inside the batch of 256 that it then scores (transductive). Here every sample is scored by what came
    before it, and TANL's share of it right after its own update; the candidates are the negatives of the label space,
    in one cluster.
    """

    tau: float = above_zero(0.01)
    omega: float = setting(0.25, 0, 1)  # weight of the images beside TANL
    delta: float = 1.0  # where the bound is even, in deviations of a margin
    temper: float = above_zero(0.5)
    beta: float = setting(0.5, 0, 100)  # width of the confidence bound
    gamma: float = above_zero(2.0)  # images that the mean of all margins stands for
    least: int = setting(2, 1, 1000)  # images that make a negative a rival
    sure: float = setting(0.5, 0, 1)  # of a known name, for its image to count

    name: ClassVar[str] = "reneg"
    needs_negatives: ClassVar[bool] = True

    @cached_property
    def base(self) -> TANL:
        """TANL over the same names."""
        return TANL(self.labels, tau=self.tau)

    def start(self) -> Evidence:
        """No evidence."""
        anchors, pool = self.labels.id_anchors, self.labels.ood_anchors
        none = pool.new_zeros(len(pool))
        return Evidence(self.base.start(), none, none, none.sum(), none, pool.new_zeros(pool.shape), 0 * anchors)

    def read(self, state: Evidence, z: Float[Tensor, "T d"]) -> DetectorOutput:
        base = self.base.read(state.base, z)
        return base._replace(score=self._lowered(state, base.score, z))

    def learn(self, state: Evidence, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Evidence]:
        """Score each sample of a block by the evidence before it, then let it be caught or count for a known name."""
        base, queues = self.base.learn(state.base, z)
        text, names = z @ self.labels.ood_anchors.T, z @ self.labels.id_anchors.T
        near, catcher = text.max(dim=1)
        margin = near - names.amax(dim=1)
        shows = ((names / self.tau).softmax(dim=1).amax(dim=1) >= self.sure) & (base.route > 0)
        now, score = Evidence(queues, *(part.clone() for part in state[1:])), torch.empty_like(base.score)
        for t, (j, label) in enumerate(zip(catcher.tolist(), base.label.tolist(), strict=True)):
            score[t] = self._lowered(now, base.score[t : t + 1], z[t : t + 1])[0]
            if margin[t] > 0:
                now.caught[j] += 1
                now.margin[j] += margin[t]
                now.squares.add_(margin[t] ** 2)
                now.votes[j] += base.route[t] < 0
                now.unknown[j] += z[t]
            if shows[t]:
                now.known[label] += z[t]
        return base._replace(score=score), now

    def trust(self, state: Evidence) -> Float[Tensor, " L"]:
        """How far each negative is believed to be what its images show, from 0 to 1."""
        count, total = state.caught + self.gamma, state.caught.sum().clamp(min=1)
        mean = state.margin.sum() / total
        deviation = (state.squares / total - mean**2).clamp(min=1e-12).sqrt()
        bound = (state.margin + self.gamma * mean) / count / deviation - self.beta / count.sqrt()
        share = (state.votes + self.gamma / 2) / count
        return torch.sigmoid((bound - self.delta) / self.temper) * torch.sigmoid((share - 0.5) / 0.1)

    def _lowered(self, state: Evidence, score: Float[Tensor, " T"], z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        rivals = state.caught >= self.least
        if not bool(rivals.any()) or not bool(state.known.any()):
            return (1 - self.omega) * score
        other = self._likeness(state.unknown[rivals], z) + self.trust(state)[rivals].log()
        known = self._likeness(state.known[state.known.any(dim=1)], z)
        penalty = (energy(known) - energy(other)).clamp(max=0)
        return (1 - self.omega) * score + self.omega * penalty.to(score)

    def _likeness(self, sums: Float[Tensor, "C d"], z: Float[Tensor, "T d"]) -> Float[Tensor, "T C"]:
        return z @ sums.T / (self.tau * torch.linalg.vector_norm(sums, dim=1))
