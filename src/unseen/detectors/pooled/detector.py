"""The detector: frozen evidence, what names look like in this stream, and what similar images have shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import Detector, DetectorOutput, above_zero, setting
from unseen.detectors.pooled import evidence as frozen
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.evidence import TERMS, Evidence, EvidenceTerm, LabelStatistics, LogitMoments
from unseen.detectors.pooled.names import NameLogits, NearestNames, TopNames, energy_gain, name_logits
from unseen.detectors.pooled.sides import side_weights
from unseen.detectors.pooled.state import Claims, Fitted, Pending, PooledState, SampleBlock, SampleRows
from unseen.detectors.state import map_state
from unseen.odds import TextLogits, text_logits


@dataclass(frozen=True, eq=False)
class PooledEvidence(Detector[PooledState]):
    """Score by frozen evidence, corrected by names in image space and by the evidence of images that look alike.

    No part follows the mix of the stream: what is learned is kept for a known and an unknown side apart, both counted
    alike, and the baseline stays where the first samples set it. For an ablation, set `terms` in a subclass.
    """

    tau: float = above_zero(0.01)
    popularity: float = setting(1.5, 0, 2)  # how much of the popularity of a name is taken out of the margin
    naming_popularity: float = setting(0.5, 0, 2)  # the same where an image is named

    name: ClassVar[str] = "pooled"
    terms: ClassVar[tuple[EvidenceTerm, ...]] = TERMS
    needs_negatives: ClassVar[bool] = True
    derives_baseline: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def start(self) -> PooledState:
        """The state before the first sample."""
        return PooledState.start(self.labels)

    def read(self, state: PooledState, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score each sample of a block as if it came next."""
        output, _ = self._judge(state, self._block(z, lambda found: self._next_baseline(state, found)))
        return output._replace(route=torch.zeros_like(output.route))

    def learn(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, PooledState]:
        """Score each sample with what was learned up to the last update, in arrival order."""
        begun, start, outputs = state, 0, list[DetectorOutput]()

        def baseline(found: Evidence) -> Float[Tensor, " T"]:
            nonlocal state
            values, state = self._running_baseline(state, found)
            return values

        block = self._block(z, baseline)
        while start < len(z) or not outputs:
            rows = slice(start, start + state.until_update)
            output, samples = self._judge(state, block.rows(rows))
            # sums that are not those of the caller's state belong to this call
            state = state.learned_from(samples, self.labels, owned=state.sums is not begun.sums)
            outputs.append(output)
            start = rows.stop
        return DetectorOutput.joined(outputs), state

    def _block(self, z: Float[Tensor, "T d"], baseline: Callable[[Evidence], Tensor]) -> SampleBlock:
        """Samples with their nearest names, their frozen evidence, and the baseline for this evidence."""
        text = text_logits(self.labels, z, tau=self.tau)
        evidence, nearest = self.evidence(text), NearestNames(*map(TopNames.of, text))
        return SampleBlock(z, nearest, evidence.value, baseline(evidence), evidence.clarity)

    def evidence(self, text: TextLogits) -> Evidence:
        """The frozen evidence of each image."""
        return frozen.evidence(text, self.label_statistics, self.used_terms)

    def baseline(self, moments: LogitMoments) -> Tensor:
        """The frozen evidence of an image related to no name."""
        return frozen.baseline(moments, self.label_statistics, self.used_terms)

    @cached_property
    def label_statistics(self) -> LabelStatistics:
        """What the evidence needs of the label space."""
        return frozen.label_statistics(self.labels, self.used_terms, tau=self.tau)

    @cached_property
    def used_terms(self) -> tuple[EvidenceTerm, ...]:
        """The terms of the evidence as the examples of the label space let them count."""
        examples = 0 if self.labels.examples is None else len(self.labels.examples)
        return tuple(term.with_examples(examples / len(self.labels.names)) for term in self.terms)

    def _next_baseline(self, state: PooledState, evidence: Evidence) -> Float[Tensor, " T"]:
        """The baseline of each sample of a block as if it came next."""
        seen = int(state.seen)
        if seen >= POOLED.baseline_samples:
            return state.baseline.expand(len(evidence.value))
        return self.baseline(map_state(lambda total, one: (total + one) / (seen + 1), state.moments, evidence.moments))

    def _running_baseline(self, state: PooledState, evidence: Evidence) -> tuple[Float[Tensor, " T"], PooledState]:
        """The baseline of each sample of a block, and the state whose baseline the block has taught."""
        seen, count, most = int(state.seen), len(evidence.value), POOLED.baseline_samples
        if seen >= most or not count:
            return state.baseline.expand(count), state
        number = seen + torch.arange(1, count + 1, device=evidence.value.device)
        totals = map_state(
            lambda total, one: total + (one * (number <= most)).cumsum(0), state.moments, evidence.moments
        )
        baseline = self.baseline(map_state(lambda total: total / number.clamp(max=most), totals))
        moments = map_state(lambda total: total[-1], totals)
        return baseline, state._replace(moments=moments, baseline=baseline[-1])

    def _judge(self, state: PooledState, block: SampleBlock) -> tuple[DetectorOutput, SampleRows]:
        """Readings of samples that come before the next update, and what they will teach."""
        nearest, fitted = block.nearest, state.fitted
        known, negative = self._name_logits(state, block.z, nearest)
        gain = (energy_gain(nearest.known, known) - energy_gain(nearest.negative, negative)).double()
        gain -= self.popularity * fitted.popularity[nearest.known.name[:, 0]]
        gain /= self.label_statistics.unit
        predicted = fitted.direction.predict(block.z)
        score = block.evidence + gain + fitted.likelihood.log_ratio(predicted)
        if self.labels.examples is not None:
            distinct = fitted.distinction.score.at(block.z, nearest.known.name[:, :1]).squeeze(1)
            score += distinct.double() / self.label_statistics.unit
        margin = block.evidence + gain - block.baseline
        weight = side_weights(margin)
        output = DetectorOutput(
            score.to(block.z.dtype),
            self._best_names(nearest.known, known, fitted, block.z),
            torch.where(weight[1] >= weight[0], 1, -1).to(torch.int8),
            block.baseline.to(block.z.dtype),
            block.clarity,
        )
        return output, SampleRows(block.z, margin, predicted, *claims(nearest, (known, negative), weight))

    def _name_logits(
        self, state: PooledState, z: Float[Tensor, "T d"], nearest: NearestNames
    ) -> tuple[NameLogits, NameLogits]:
        """What image space adds to the logits of the nearest known and the nearest negative names."""
        sums, fitted = state.sums, state.fitted
        return (
            name_logits(z, nearest.known, sums.known, fitted.known, tau=self.tau),
            name_logits(z, nearest.negative, sums.negative, fitted.negative, tau=self.tau),
        )

    def _best_names(
        self, nearest: TopNames, image: NameLogits, fitted: Fitted, z: Float[Tensor, "T d"]
    ) -> Int[Tensor, " T"]:
        """The best known name: text, looks of names that have claimed many images, examples, and few votes."""
        name, logit = nearest
        learned = image.images / (image.images + POOLED.naming_samples) * (image.learned - image.start)
        total = logit + image.start + learned - self.naming_popularity * fitted.votes[name].to(logit.dtype)
        if self.labels.examples is not None:
            total += fitted.distinction.naming.at(z, name)
        return name.gather(1, total.argmax(1, keepdim=True)).squeeze(1)

    def _transferred(self, state: PooledState, before: Detector[PooledState], z: Float[Tensor, "n d"]) -> PooledState:
        """A state over other names; the baseline moves by what the change of names does to images of the stream.

        The mean moments of `z` are taken under both label spaces; their difference is added to those of the samples
        that set the baseline.
        """
        done = state.updated(before.labels)
        sums = done.sums.transferred(before.labels, self.labels)
        moments, counted = done.moments, done.seen.clamp(max=POOLED.baseline_samples)
        if len(z):
            old, new = (one.evidence(text_logits(one.labels, z, tau=self.tau)).moments for one in (before, self))  # type: ignore[attr-defined]
            moments = map_state(lambda total, a, b: total + counted * (b.mean() - a.mean()), moments, old, new)
        baseline = self.baseline(map_state(lambda total: total / counted.clamp(min=1), moments))
        fitted = Fitted.of(sums, int(done.seen), self.labels)
        return PooledState(done.seen, moments, baseline, sums, fitted, done.learned, Pending.none(self.labels))


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
