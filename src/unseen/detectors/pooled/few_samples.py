"""Few samples, on a CPU: the formulas of `detector` and `names` in NumPy.

Few samples are some hundred operations on few numbers each, and NumPy's take a quarter of the time of torch's. What
stays the same between two updates is computed once for all samples between them. One sample has no dimension of its own
(`as_array`): an operation on a number takes a fifth of the time of one on an array of one number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from unseen.detectors.base import DetectorOutput
from unseen.detectors.pooled.distinction import NameRows
from unseen.detectors.pooled.evidence import Evidence, RowMoments, evidence_of
from unseen.detectors.pooled.formulas import Formulas
from unseen.detectors.pooled.likelihood import few_log_ratios
from unseen.detectors.pooled.names import (
    CLAIMED_BY_LOOK,
    NAME_SCALE,
    NAMING_SAMPLES,
    START_SAMPLES,
    TEXT_SHARE,
    NameSums,
    name_lengths,
    top_names,
)
from unseen.detectors.pooled.sides import few_weights
from unseen.detectors.pooled.state import PooledState
from unseen.text import text_logits

Array = np.ndarray[Any, Any]


class NearestLooks(NamedTuple):
    """The names of one side nearest to each sample, the nearest first, and what image space adds to their logits."""

    name: Array  # [*T, N], as all of these
    logit: Array
    start: Array  # what image space adds for a name that has claimed nothing
    learned: Array  # and for the name as it is now
    naming: Array  # how much of the difference counts when an image is named

    def best_names(self, held_back: Array, distinct: Array | float) -> Array:
        """The name of each image; `PooledEvidence._best_names` has the formula."""
        looks = self.start + self.naming * (self.learned - self.start)
        logit = self.logit + looks - held_back.take(self.name) + distinct
        first = 0 if logit.ndim == 1 else logit.shape[1] * np.arange(logit.shape[0])
        return self.name.take(first + logit.argmax(-1))


class Masses(NamedTuple):
    """The mass of the names of one side nearest to each sample, that of the nearest by its text being 1."""

    peak: Array  # [*T], logit of the nearest by its text
    claiming: Array  # [*T, N], of each name when images are claimed
    claimed: Array  # [*T], their sum
    gain: Array  # [*T], by how much image space raises the energy

    @classmethod
    def of(cls, side: NearestLooks) -> Masses:
        """The masses of names."""
        peak = side.logit[..., 0]
        text = side.logit - peak[..., None]
        masses = np.exp(np.array([text, text + CLAIMED_BY_LOOK * side.learned, text + side.learned]))
        whole, claimed, scored = np.add.reduce(masses, axis=-1)
        return cls(peak, masses[1], claimed, np.log(scored / whole))


class SideTable(NamedTuple):
    """The names of one side in image space, as they stay until the next update."""

    origin: Array  # [d]
    total: Array  # [C, d]
    columns: (
        Array  # [4, C]: what a sum is multiplied by to be a mean, both lengths, and how much a look counts in naming
    )

    @classmethod
    def of(cls, anchors: Float[Tensor, "C d"], sums: NameSums, origin: Float[Tensor, " d"]) -> SideTable:
        """The table that follows from the sums of a side."""
        lengths = name_lengths(anchors, sums, origin)
        mean, naming = 1 / (START_SAMPLES + sums.images), sums.images / (sums.images + NAMING_SAMPLES)
        return cls(origin.numpy(), sums.total.numpy(), torch.stack([mean, *lengths, naming]).numpy())

    def looks(self, z: Array, logits: Float[Tensor, "T C"], *, tau: float) -> NearestLooks:
        """The nearest names of each sample; `names.name_logits` has the formula."""
        name, logit = map(as_array, top_names(logits))
        mean, now, start, naming = self.columns.take(name, axis=1)
        from_start = TEXT_SHARE * tau * logit + (z @ self.origin)[..., None]
        products = np.vecdot(self.total.take(name, axis=0), z[..., None, :])
        from_mean = mean * (products + START_SAMPLES * from_start)
        return NearestLooks(name, logit, NAME_SCALE * (from_start - start), NAME_SCALE * (from_mean - now), naming)


class RowTable(NamedTuple):
    """`distinction.NameRows` as arrays."""

    rows: Array
    offset: Array

    @classmethod
    def of(cls, found: NameRows) -> RowTable:
        """The rows of a state."""
        return cls(*(part.numpy() for part in found))

    def at(self, z: Array, name: Array) -> Any:
        """What is added for each name; 0 where names have no examples."""
        if not len(self.rows):
            return 0.0
        return np.vecdot(self.rows.take(name, axis=0), z[..., None, :]) - self.offset.take(name)


class StateTable(NamedTuple):
    """What is read of a state at each sample, as it stays until the next update."""

    known: SideTable
    negative: SideTable
    popularity: Array
    held_back: Array  # nats by which the votes of each name count against it when an image is named
    slope: Array
    level: float
    middle: float
    rate: float
    distinct_score: RowTable
    distinct_naming: RowTable


@dataclass(frozen=True)
class FewSamplesJudge:
    """Judge samples that come after those which set the baseline."""

    formulas: Formulas
    _tables: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)  # by a tensor of the state

    def __call__(self, state: PooledState, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Float[Tensor, "T W"]]:
        """The readings of samples, and what they will teach as `state.packed` has it."""
        tau, unit = self.formulas.tau, self.formulas.statistics.unit
        table, text, rows = self._table(state), text_logits(self.formulas.labels, z, tau=tau), as_array(z)
        known = table.known.looks(rows, text.known, tau=tau)
        negative = table.negative.looks(rows, text.negative, tau=tau)
        masses = Masses.of(known), Masses.of(negative)
        evidence = self._evidence((as_array(text.known), as_array(text.negative)), masses)
        gain = masses[0].gain - masses[1].gain - table.popularity.take(known.name[..., 0])
        raised: Array = evidence.value + gain / unit
        predicted, baseline = rows @ table.slope + table.level, float(state.baseline)
        margin = raised - baseline
        weight = few_weights(margin)
        score = raised + few_log_ratios(predicted, table.middle, table.rate)
        if len(table.distinct_score.rows):
            score = score + table.distinct_score.at(rows, known.name[..., :1])[..., 0] / unit
        output = DetectorOutput(
            as_column(score, rows.dtype),
            as_column(known.best_names(table.held_back, table.distinct_naming.at(rows, known.name)), np.int64),
            as_column(np.where(weight >= 0.5, 1, -1), np.int8),
            torch.from_numpy(np.full(z.shape[0], baseline, rows.dtype)),
            as_column(evidence.clarity, rows.dtype),
        )
        known_share, negative_share = shares(masses, (weight, 1 - weight))
        numbers = margin[..., None], predicted[..., None]
        taught = rows, *numbers, known.name, known_share, negative.name, negative_share
        packed = np.concatenate(taught, axis=-1, dtype=np.float64)
        return output, torch.from_numpy(packed.reshape(z.shape[0], -1))

    def _evidence(self, logits: tuple[Array, Array], masses: tuple[Masses, Masses]) -> Evidence:
        """The frozen evidence of the samples, as arrays."""
        known, negative = (moments_of(side) for side in logits)
        energies = [energy(side, mass.peak) for side, mass in zip(logits, masses, strict=True)]
        peak, log_odds = as_float(masses[0].peak), as_float(energies[0] - energies[1])
        return evidence_of(known, negative, peak, log_odds, self.formulas.statistics, self.formulas.terms)

    def _table(self, state: PooledState) -> StateTable:
        """What is read of a state until its next update, computed at the first sample after an update."""
        key = state.fitted.known  # made anew by every update
        if (found := self._tables.get(key)) is None:
            found = self._tables[key] = self._new_table(state)
        return found

    def _new_table(self, state: PooledState) -> StateTable:
        labels, sums, fitted = self.formulas.labels, state.sums, state.fitted
        direction = fitted.direction
        return StateTable(
            SideTable.of(labels.id_anchors, sums.known, fitted.known),
            SideTable.of(labels.ood_anchors, sums.negative, fitted.negative),
            self.formulas.popularity * fitted.popularity.numpy(),
            self.formulas.naming_popularity * fitted.votes.numpy(),
            direction.slope.numpy(),
            float(direction.level - direction.centre @ direction.slope),
            float(fitted.likelihood.middle),
            float(fitted.likelihood.rate),
            RowTable.of(fitted.distinction.score),
            RowTable.of(fitted.distinction.naming),
        )


def as_array(rows: Tensor) -> Array:
    """Rows as an array; the only one without the dimension of samples."""
    return rows.numpy() if rows.shape[0] > 1 else rows.numpy()[0]


def as_column(values: Any, dtype: Any) -> Float[Tensor, " T"]:
    """Numbers as a column of a type; by NumPy, in a third of the time of torch."""
    return torch.from_numpy(np.array(values, dtype, ndmin=1))


def moments_of(logits: Array) -> RowMoments:
    """Mean and variance for each sample."""
    count = logits.shape[-1]
    mean = np.add.reduce(logits, axis=-1) / count
    off = logits - mean[..., None]
    return RowMoments(as_float(mean), as_float(np.vecdot(off, off) / count))


def as_float(values: Any) -> Any:
    """A number as Python's, which is faster than NumPy's; arrays as they are."""
    return values if values.ndim else float(values)


def energy(logits: Array, peak: Array) -> Any:
    """The logsumexp for each sample, of which `peak` is the largest logit."""
    return peak + np.log(np.add.reduce(np.exp(logits - peak[..., None]), axis=-1))


def shares(masses: tuple[Masses, Masses], weights: tuple[Array, Array]) -> list[Array]:
    """The softmax over the nearest names of both sides, times the weight of each side."""
    peak = np.maximum(masses[0].peak, masses[1].peak)
    scales = [np.exp(mass.peak - peak) for mass in masses]
    total = scales[0] * masses[0].claimed + scales[1] * masses[1].claimed
    return [
        mass.claiming * (weight * scale / total)[..., None]
        for mass, scale, weight in zip(masses, scales, weights, strict=True)
    ]
