"""What a threshold remembers of a stream: margins counted at nodes, and what was fitted to them last."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.threshold.clear import ClearImages
from unseen.threshold.mixture import fit_mixture
from unseen.threshold.nodes import NODES, counts

RECENT = 512.0  # samples after which a margin counts 1 / e for the present share of known images
TYPICAL_MEAN, TYPICAL_DEVIATION = 3.0, 7.0  # of the margins of a mixed stream, in the units that the mixtures know


class Units(NamedTuple):
    """How margins are carried into the units that the mixtures know: (margin - shift) / scale."""

    shift: Float[Tensor, ""]
    scale: Float[Tensor, ""]

    @classmethod
    def nats(cls) -> Units:
        """The units of a detector that derives its baseline."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def of(cls, margins: Float[Tensor, " n"]) -> Units:
        """Units in which these margins have the mean and the deviation of a typical stream."""
        scale = margins.std().clamp(min=1e-6) / TYPICAL_DEVIATION
        return cls(margins.mean() - TYPICAL_MEAN * scale, scale)

    def apply(self, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Margins in these units."""
        return (margin.double() - self.shift) / self.scale


class MarginHistory(NamedTuple):
    """What the stream has shown, and what follows from it."""

    seen: Int[Tensor, ""]
    counts: Float[Tensor, " N"]  # of margins at the nodes of the mixtures, each times its place in the stream
    recent: Float[Tensor, " N"]  # the same, of the latest few hundred: for the share of known images
    clear: ClearImages
    ring: Float[Tensor, " W"]  # the latest margins, where their units are not known; else empty
    waiting: Int[Tensor, ""]  # how many margins came since the last update and are in no other sum
    pending: Float[Tensor, "E 2"]  # those margins, and the clarity of their images; empty where there is a ring
    units: Units
    threshold: Float[Tensor, ""]  # in nats of the detector
    probability: Float[Tensor, " N"]  # that an image is known, at each node
    recall: Float[Tensor, " 2"]  # the lowest and the highest share of known images that the threshold may keep

    @classmethod
    def start(cls, recall: float, *, pending: int, window: int = 0) -> MarginHistory:
        """The history before the first margin: what the prior says, with room for margins that wait."""
        empty, zero = torch.zeros(NODES, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        fit = fit_mixture(empty, empty, recall)
        ring, waiting = torch.zeros(window, dtype=torch.float64), torch.zeros(pending, 2, dtype=torch.float64)
        start = zero.long(), empty, empty, ClearImages.none(), ring, zero.long(), waiting, Units.nats()
        return cls(*start, *fit)

    def waiting_with(self, columns: Float[Tensor, "n 2"]) -> MarginHistory:
        """The history with more samples that wait for an update; `columns` are their margin and clarity."""
        waiting, pending = int(self.waiting), self.pending.clone()
        pending[waiting : waiting + len(columns)] = columns
        return self._replace(seen=self.seen + len(columns), waiting=self.waiting + len(columns), pending=pending)

    def updated(self, recall: float) -> MarginHistory:
        """The history that has taken in all that waits, and what follows from it."""
        waiting, end = int(self.waiting), int(self.seen)
        margin, clarity = self.pending[:waiting].unbind(1)
        place = torch.arange(end - waiting + 1, end + 1, dtype=torch.float64)
        counted = self.counts + counts(margin, place)
        late = counts(margin, torch.exp((place - end) / RECENT))
        recent = self.recent * math.exp(-waiting / RECENT) + late
        clear = self.clear.then(ClearImages.of(margin, clarity, place))
        fit = fit_mixture(counted / end, recent, recall, clear)
        none = torch.zeros_like(self.waiting)
        return self._replace(counts=counted, recent=recent, clear=clear, waiting=none, **fit._asdict())

    def ring_with(self, margins: Float[Tensor, " n"]) -> MarginHistory:
        """The history with more margins in units that are not known, in the place of the oldest."""
        places = torch.arange(int(self.seen), int(self.seen) + len(margins)) % len(self.ring)
        ring = self.ring.index_copy(0, places, margins.double())
        return self._replace(seen=self.seen + len(margins), ring=ring)

    def ring_updated(self, recall: float) -> MarginHistory:
        """The history with what follows from the latest margins, in units in which they are a typical stream."""
        margins = self.ring[: int(self.seen)]
        units = Units.of(margins)
        at_nodes = counts(units.apply(margins))
        fit = fit_mixture(at_nodes, at_nodes, recall)
        return self._replace(
            units=units, threshold=fit.threshold * units.scale + units.shift, probability=fit.probability
        )
