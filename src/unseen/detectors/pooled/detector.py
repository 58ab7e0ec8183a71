"""The detector: frozen log-odds, and what image space adds to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import Detector, DetectorOutput, above_zero, setting
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.names import NameLogits, NearestNames, TopNames, energy_gain, name_logits
from unseen.detectors.pooled.sides import raised, side_weights
from unseen.detectors.pooled.state import Claims, Fitted, Pending, PooledState, SampleBlock, SampleRows
from unseen.odds import neglabel, text_logits


@dataclass(frozen=True, eq=False)
class PooledEvidence(Detector[PooledState]):
    """Score by frozen log-odds, less the popularity of the nearest name, and what image space says.

    Image space lowers a score by as much as it deserves and raises it by little: an unknown image may look like a known
    one. No part follows the mix of the stream: what is learned is kept for a known and an unknown side apart, both
    counted alike.
    """

    tau: float = above_zero(0.01)
    popularity: float = setting(1.0, 0, 2)  # how much of the popularity of a name is taken out of the margin
    naming_popularity: float = setting(0.5, 0, 2)  # the same where an image is named

    name: ClassVar[str] = "pooled"
    needs_negatives: ClassVar[bool] = True
    in_nats: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def start(self) -> PooledState:
        """The state before the first sample."""
        return PooledState.start(self.labels)

    def read(self, state: PooledState, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score each sample of a block as if it came next."""
        output, _ = self._judge(state, self._block(z))
        return output._replace(route=torch.zeros_like(output.route))

    def learn(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, PooledState]:
        """Score each sample with what was learned up to the last update, in arrival order."""
        begun, block, start, outputs = state, self._block(z), 0, list[DetectorOutput]()
        while start < len(z) or not outputs:
            rows = slice(start, start + state.until_update)
            output, samples = self._judge(state, block.rows(rows))
            # sums that are not those of the caller's state belong to this call
            state = state.learned_from(samples, self.labels, owned=state.sums is not begun.sums)
            outputs.append(output)
            start = rows.stop
        return DetectorOutput.joined(outputs), state

    @property
    def baseline(self) -> float:
        """The score of an image that is related to no name: each word, known or not, is as near to it as any other."""
        return math.log(len(self.labels.names) / len(self.labels.negatives))

    def _block(self, z: Float[Tensor, "T d"]) -> SampleBlock:
        """Samples with their nearest names and their frozen log-odds."""
        text = text_logits(self.labels, z, tau=self.tau)
        return SampleBlock(z, NearestNames(*map(TopNames.of, text)), neglabel(text).double())

    def _judge(self, state: PooledState, block: SampleBlock) -> tuple[DetectorOutput, SampleRows]:
        """The output for samples that come before the next update, and what they will teach."""
        nearest, fitted = block.nearest, state.fitted
        known, negative = self._name_logits(state, block.z, nearest)
        gain = (energy_gain(nearest.known, known) - energy_gain(nearest.negative, negative)).double()
        predicted = fitted.direction.predict(block.z)
        frozen = block.log_odds - self.popularity * fitted.popularity[nearest.known.name[:, 0]]
        score = frozen + raised(gain + fitted.likelihood.log_ratio(predicted))
        evidence = frozen + raised(gain) - self.baseline
        weight = side_weights(evidence)
        output = DetectorOutput(
            score.to(block.z.dtype),
            self._best_names(nearest.known, known, fitted),
            torch.where(weight[1] >= weight[0], 1, -1).to(torch.int8),
            torch.full_like(score, self.baseline).to(block.z.dtype),
            nearest.negative.name[:, 0],
        )
        return output, SampleRows(block.z, evidence, predicted, *claims(nearest, (known, negative), weight))

    def _name_logits(
        self, state: PooledState, z: Float[Tensor, "T d"], nearest: NearestNames
    ) -> tuple[NameLogits, NameLogits]:
        """What image space adds to the logits of the nearest known and the nearest negative names."""
        return (
            name_logits(z, nearest.known, state.sums.known, state.fitted.known, tau=self.tau),
            name_logits(z, nearest.negative, state.sums.negative, state.fitted.negative, tau=self.tau),
        )

    def _best_names(self, nearest: TopNames, image: NameLogits, fitted: Fitted) -> Int[Tensor, " T"]:
        """The best known name: text, looks of names that have claimed many images, and few votes."""
        name, logit = nearest
        learned = image.images / (image.images + POOLED.naming_samples) * (image.learned - image.start)
        total = logit + image.start + learned - self.naming_popularity * fitted.votes[name].to(logit.dtype)
        return name.gather(1, total.argmax(1, keepdim=True)).squeeze(1)

    def _transferred(self, state: PooledState, before: Detector[PooledState], z: Float[Tensor, "n d"]) -> PooledState:
        """A state over other names."""
        done = state.updated(before.labels)
        sums = done.sums.transferred(before.labels, self.labels)
        fitted = Fitted.of(sums, int(done.seen), self.labels)
        return PooledState(done.seen, sums, fitted, done.learned, Pending.none(self.labels))


def claims(
    nearest: NearestNames, images: tuple[NameLogits, NameLogits], weight: Float[Tensor, "2 T"]
) -> tuple[Claims, Claims]:
    """The softmax over the nearest names of both sides, times the weight of the side.

    The look of a name counts half, so that its errors do not last.
    """
    logits = [side.logit + POOLED.claimed_by_look * image.learned for side, image in zip(nearest, images, strict=True)]
    share = torch.cat(logits, dim=1).softmax(1)
    known, negative = share.split([side.shape[1] for side in logits], dim=1)
    unknown_weight, known_weight = weight.unsqueeze(2).to(share.dtype)
    return Claims(nearest.known.name, known_weight * known), Claims(nearest.negative.name, unknown_weight * negative)
