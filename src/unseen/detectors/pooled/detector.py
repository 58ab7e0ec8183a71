"""The detector: frozen evidence, what names look like in this stream, and what similar images have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import FEW_SAMPLES, UNIT_TOLERANCE, Detector, DetectorOutput, in_range, positive
from unseen.detectors.merging import MergeRule
from unseen.detectors.pooled.evidence import TERMS, Evidence, EvidenceTerm, LabelStatistics, LogitMoments
from unseen.detectors.pooled.example_statistics import label_statistics
from unseen.detectors.pooled.few_samples import FewSamplesJudge
from unseen.detectors.pooled.formulas import Formulas
from unseen.detectors.pooled.gpu.streams import Streams, StreamsByCount, Unsolved
from unseen.detectors.pooled.learning import Learning
from unseen.detectors.pooled.names import (
    CLAIMED_BY_LOOK,
    NAMING_SAMPLES,
    NameLogits,
    NearestNames,
    TopNames,
    energy_gain,
    name_logits,
    top_names,
)
from unseen.detectors.pooled.sides import side_weights
from unseen.detectors.pooled.state import BASELINE_SAMPLES, Claims, Fitted, PooledState, SampleBlock, SampleRows
from unseen.detectors.pooled.transfer import carried_sums
from unseen.detectors.state import map_state
from unseen.text import TextLogits, text_logits

FORMULAS = ("_judge", "_name_logits", "_best_names", "evidence", "baseline")  # methods that a subclass may override
BLOCKS = 8  # blocks of text logits between two copies of the sums


@dataclass(frozen=True, eq=False)
class PooledEvidence(Detector[PooledState]):
    """Score by frozen evidence, corrected by names in image space and by the evidence of images that look alike.

    No part follows the mix of the stream: what is learned is kept for a known and an unknown side apart, both counted
    alike, and the baseline stays where the first samples set it. For an ablation, set `terms` in a subclass.
    """

    tau: float = 0.01
    popularity: float = 1.5  # how much of the popularity of a name is taken out of the margin
    naming_popularity: float = 0.5  # the same where an image is named

    name: ClassVar[str] = "pooled"
    terms: ClassVar[tuple[EvidenceTerm, ...]] = TERMS
    needs_negatives: ClassVar[bool] = True
    derives_baseline: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    transfers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(tau=self.tau)
        in_range("popularity", self.popularity, 0, 2)
        in_range("naming_popularity", self.naming_popularity, 0, 2)

    def start(self) -> PooledState:
        """The state before the first sample."""
        return PooledState.start(self.labels)

    def read(self, state: PooledState, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score each sample of a block as if it came next."""
        output, _ = self._judge(state, self._block(z, partial(self._next_baseline, state)))
        return output._replace(route=torch.zeros_like(output.route))

    def learn(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, PooledState]:
        """Score each sample with what was learned up to the last update, in arrival order."""
        if not z.shape[0]:
            return self.read(state, z), state
        try:
            with self._streams(1, z) as streams:
                if streams:
                    return streams.observe([state], z, torch.arange(len(z))[None])[0]
        except Unsolved:
            pass
        return self._learn_in_torch(state, z)

    def _learn_in_torch(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, PooledState]:
        outputs, learning = [], Learning(state, self.labels)
        count, few = z.shape[0], 0 if z.is_cuda or self._has_own_formulas else FEW_SAMPLES
        if count <= few and learning.seen >= BASELINE_SAMPLES:
            first = learning.until_update
            parts = (z,) if count <= first else (z[:first], z[first:])
            outputs = [learning.judge_few(part, self._judge_few) for part in parts]
            return DetectorOutput.joined(outputs), learning.finish()
        for part in z.split(super().block_for(z)):
            block, start = self._block(part, partial(self._running_baseline, learning)), 0
            while start < len(part):
                rows = slice(start, start + learning.until_update)
                outputs.append(learning.judge(block.rows(rows), self._judge))
                start = rows.stop
        return DetectorOutput.joined(outputs), learning.finish()

    def observe(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, PooledState]:
        """Learn from `z` in arrival order; return the readings and the state after the last sample."""
        return self._observe_single(state, z) or super().observe(state, z)

    def _observe_single(self, state: PooledState, z: Tensor) -> tuple[DetectorOutput, PooledState] | None:
        """What `observe` does for one sample on a GPU that waits for an update; None for all others."""
        like = self.labels.id_anchors
        if not z.is_cuda or z.shape != (1, like.shape[1]) or z.dtype != like.dtype or z.device != like.device:
            return None
        learning = Learning(state, self.labels)
        if learning.seen < BASELINE_SAMPLES or learning.until_update == 1:
            return None
        with self._streams(1, z) as streams:
            if streams is None:
                return None
            found = streams.single(state, z.detach())
            output = learning.judge_few(z, lambda *_: found, append=streams.appended.with_rows_at)
            after, (output, length) = learning.finish(), streams.finish_single(output)
        return (output, after) if abs(length - 1) <= UNIT_TOLERANCE else None  # `_checked` says what is wrong

    def observe_many(
        self, states: Sequence[PooledState], z: Float[Tensor, "n d"], orders: Sequence[Int[Tensor, " T"]]
    ) -> list[tuple[DetectorOutput, PooledState]]:
        """Observe independent streams; on a GPU in lockstep those which have seen as many samples, as far as all go."""
        alike = {(int(state.seen), int(state.pending.size)) for state in states}
        common = min((len(order) for order in orders), default=0)
        if not z.is_cuda or len(states) < 2 or len(alike) > 1 or not common:
            return super().observe_many(states, z, orders)
        z = self._checked(z)
        try:
            with self._streams(len(states), z) as streams:
                if not streams:
                    return super().observe_many(states, z, orders)
                begun = streams.observe(states, z, torch.stack([order[:common] for order in orders]))
        except Unsolved:
            return super().observe_many(states, z, orders)
        return [self._observe_rest(*one, z[order[common:]]) for one, order in zip(begun, orders, strict=True)]

    def _observe_rest(
        self, begun: DetectorOutput, state: PooledState, z: Float[Tensor, "n d"]
    ) -> tuple[DetectorOutput, PooledState]:
        """Readings and those of the samples that follow."""
        if not len(z):
            return begun, state
        rest, state = self.observe(state, z)
        return DetectorOutput.joined([begun, rest]), state

    def _streams(self, count: int, z: Tensor) -> AbstractContextManager[Streams | None]:
        """Streams that are learned in lockstep where z is on a GPU and no other thread uses them, else None."""
        if not z.is_cuda or self._has_own_formulas or not self._gpu.formulas.are_known:
            return nullcontext()
        return self._gpu.acquire(count)

    @cached_property
    def _has_own_formulas(self) -> bool:
        """Whether a subclass, as of an ablation, judges by formulas that neither NumPy nor kernels have."""
        return any(getattr(type(self), name) is not getattr(PooledEvidence, name) for name in FORMULAS)

    @cached_property
    def _formulas(self) -> Formulas:
        weights = self.tau, self.popularity, self.naming_popularity
        return Formulas(self.labels, self.label_statistics, self.used_terms, *weights)

    @cached_property
    def _gpu(self) -> StreamsByCount:
        return StreamsByCount(self._formulas)

    @cached_property
    def _judge_few(self) -> FewSamplesJudge:
        return FewSamplesJudge(self._formulas)

    def block_for(self, z: Tensor) -> int:
        """How many samples are learned between two copies of the sums."""
        return super().block_for(z) * BLOCKS

    def _block(self, z: Float[Tensor, "T d"], baseline: Callable[[Evidence], Tensor]) -> SampleBlock:
        """Samples with their nearest names, their frozen evidence, and the baseline for this evidence."""
        text = text_logits(self.labels, z, tau=self.tau)
        evidence, nearest = self.evidence(text), NearestNames(*(top_names(side) for side in text))
        return SampleBlock(z, nearest, evidence.value, baseline(evidence), evidence.clarity)

    def _transferred(self, state: PooledState, before: Detector[PooledState], z: Float[Tensor, "n d"]) -> PooledState:
        """A state over other names; the baseline moves by what the change of names does to images of the stream.

        The mean moments of `z` are taken under both label spaces; their difference is added to those of the samples
        that set the baseline.
        """
        done = state.updated(before.labels)
        sums = carried_sums(done.sums, before.labels, self.labels)
        moments, counted = done.moments, done.seen.clamp(max=BASELINE_SAMPLES)
        if len(z):
            old, new = (one.evidence(text_logits(one.labels, z, tau=self.tau)).moments for one in (before, self))  # type: ignore[attr-defined]
            moments = map_state(lambda total, a, b: total + counted * (b.mean() - a.mean()), moments, old, new)
        baseline = self.baseline(map_state(lambda total: total / counted.clamp(min=1), moments))
        fitted = Fitted.of(sums, int(done.seen), self.labels)
        pending = PooledState.start(self.labels).pending
        return PooledState(done.seen, moments, baseline, sums, fitted, done.learned, pending)

    def observe_part(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, SampleRows]:
        """The readings of samples that come before the next update, and their rows: all that they teach."""
        return self._judge(state, self._block(self._checked(z), lambda _: state.baseline.expand(len(z))))

    def _merged(self, start: PooledState, taught: Sequence[SampleRows], rule: MergeRule) -> PooledState:
        """The state of one observer who saw the samples of all parts."""
        learning = Learning(start, self.labels)
        learning.learn(map_state(lambda *parts: torch.cat(parts), *taught))
        return learning.finish()

    def samples_until_shared(self, state: PooledState) -> int:
        """How many samples are missing to the baseline, which all observers of a stream must share."""
        return max(0, BASELINE_SAMPLES - int(state.seen))

    def merge_interval(self, state: PooledState, most: int) -> int:
        """The samples to the next update at most: up to there one observer judges by the same state too."""
        return min(most, state.until_update)

    @cached_property
    def label_statistics(self) -> LabelStatistics:
        """What the evidence needs of the label space."""
        return label_statistics(self.labels, self.used_terms, tau=self.tau)

    @cached_property
    def used_terms(self) -> tuple[EvidenceTerm, ...]:
        """The terms of the evidence as the examples of the label space let them count."""
        examples = 0 if self.labels.examples is None else len(self.labels.examples)
        return tuple(term.with_examples(examples / len(self.labels.names)) for term in self.terms)

    def evidence(self, text: TextLogits) -> Evidence:
        """The frozen evidence of each image."""
        return self._formulas.evidence(text)

    def baseline(self, moments: LogitMoments) -> Tensor:
        """The frozen evidence of an image related to no name."""
        return self._formulas.baseline(moments)

    def _next_baseline(self, state: PooledState, evidence: Evidence) -> Float[Tensor, " T"]:
        """The baseline of each sample of a block as if it came next."""
        seen = int(state.seen)
        if seen >= BASELINE_SAMPLES:
            return state.baseline.expand(len(evidence.value))
        return self.baseline(map_state(lambda total, one: (total + one) / (seen + 1), state.moments, evidence.moments))

    def _running_baseline(self, learning: Learning, evidence: Evidence) -> Float[Tensor, " T"]:
        """The baseline of each sample of a block, and let the block teach it."""
        if learning.seen >= BASELINE_SAMPLES:
            return learning.state.baseline.expand(len(evidence.value))
        moments = learning.state.moments
        number = learning.seen + torch.arange(1, len(evidence.value) + 1, device=evidence.value.device)
        counted = number <= BASELINE_SAMPLES
        totals = map_state(lambda total, one: total + (one * counted).cumsum(0), moments, evidence.moments)
        means = map_state(lambda total: total / number.clamp(max=BASELINE_SAMPLES), totals)
        baseline, moments = self.baseline(means), map_state(lambda total: total[-1], totals)
        learning.state = learning.state._replace(moments=moments, baseline=baseline[-1])
        return baseline

    def _judge(self, state: PooledState, block: SampleBlock) -> tuple[DetectorOutput, SampleRows]:
        """Readings of samples that come before the next update, and what they will teach."""
        nearest = block.nearest
        known, negative = self._name_logits(state, block.z, nearest)
        gain = energy_gain(nearest.known, known) - energy_gain(nearest.negative, negative)
        gain = gain.double() - self.popularity * state.fitted.popularity[nearest.known.name[:, 0]]
        gain /= self.label_statistics.unit
        predicted = state.fitted.direction.predict(block.z)
        score = block.evidence + gain + state.fitted.likelihood.log_ratio(predicted)
        if self.labels.examples is not None:
            distinct = state.fitted.distinction.score.at(block.z, nearest.known.name[:, :1]).squeeze(1)
            score += distinct.double() / self.label_statistics.unit
        margin = block.evidence + gain - block.baseline
        weight = side_weights(margin)
        output = DetectorOutput(
            score.to(block.z.dtype),
            self._best_names(nearest.known, known, state.fitted, block.z),
            torch.where(weight[1] >= weight[0], 1, -1).to(torch.int8),
            block.baseline.to(block.z.dtype),
            block.clarity,
        )
        corrected = corrected_logits(nearest.known, known), corrected_logits(nearest.negative, negative)
        return output, SampleRows(block.z, margin, predicted, *claims(nearest, corrected, weight))

    def _name_logits(
        self, state: PooledState, z: Float[Tensor, "T d"], nearest: NearestNames
    ) -> tuple[NameLogits, NameLogits]:
        """What image space adds to the logits of the nearest known and the nearest negative names."""
        sums, fitted = state.sums, state.fitted
        (known, known_logit), (negative, negative_logit) = nearest
        anchors = self.labels.id_anchors, self.labels.ood_anchors
        return (
            name_logits(z, self.tau * known_logit, known, anchors[0], sums.known, fitted.known),
            name_logits(z, self.tau * negative_logit, negative, anchors[1], sums.negative, fitted.negative),
        )

    def _best_names(
        self, nearest: TopNames, image: NameLogits, fitted: Fitted, z: Float[Tensor, "T d"]
    ) -> Int[Tensor, " T"]:
        """The best known name: text, looks of names that have claimed many images, examples, and few votes."""
        name, logit = nearest
        learned = image.images / (image.images + NAMING_SAMPLES) * (image.learned - image.start)
        held_back = self.naming_popularity * fitted.votes[name].to(logit.dtype)
        total = logit + image.start + learned - held_back
        if self.labels.examples is not None:
            total += fitted.distinction.naming.at(z, name)
        best = total.argmax(1, keepdim=True)
        return name.gather(1, best).squeeze(1)


def corrected_logits(top: TopNames, image: NameLogits) -> Float[Tensor, "T N"]:
    """The logits that claims are made with: the look of a name counts half, so that its errors do not last."""
    return top.logit + CLAIMED_BY_LOOK * image.learned


def claims(
    nearest: NearestNames, logits: tuple[Float[Tensor, "T N"], Float[Tensor, "T M"]], weight: Float[Tensor, "2 T"]
) -> tuple[Claims, Claims]:
    """The softmax over the nearest names of both sides, times the weight of the side."""
    share = torch.cat(logits, dim=1).softmax(1)
    known, negative = share.split([side.shape[1] for side in logits], dim=1)
    unknown_weight, known_weight = weight.unsqueeze(2).to(share.dtype)
    return Claims(nearest.known.name, known_weight * known), Claims(nearest.negative.name, unknown_weight * negative)
