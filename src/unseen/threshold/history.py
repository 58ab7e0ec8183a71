"""What a threshold remembers of a stream: margins counted at nodes, and what was fitted to them last."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.threshold.clear import ClearImages
from unseen.threshold.mixture import MixtureFit
from unseen.threshold.nodes import counts

RECENT = 512.0  # samples after which a margin counts 1 / e for the present share of known images
TYPICAL_MEAN, TYPICAL_DEVIATION = 3.0, 7.0  # of the margins of a mixed stream, in the units that the mixtures know


class Units(NamedTuple):
    """How margins are carried into the units that the mixtures know: (margin - shift) / scale."""

    shift: Float[Tensor, ""]
    scale: Float[Tensor, ""]

    @classmethod
    def nats(cls) -> Units:
        """Return the units of a detector that derives its baseline."""
        return cls(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))

    @classmethod
    def of(cls, margins: Float[Tensor, " n"]) -> Units:
        """Return units in which these margins have the mean and the deviation of a typical stream."""
        scale = margins.std().clamp(min=1e-6) / TYPICAL_DEVIATION
        return cls(margins.mean() - TYPICAL_MEAN * scale, scale)

    def apply(self, margin: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
        """Return margins in these units."""
        return (margin.detach().cpu().double() - self.shift) / self.scale


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

    def to(self, device: torch.device) -> MarginHistory:
        """Return the history with all but its counts of samples and its units on a device."""
        return self._replace(**{name: getattr(self, name).to(device) for name in ON_DEVICE})

    def updated(self, sums: MarginSums, fit: MixtureFit) -> MarginHistory:
        """Return the history after the last of some updates."""
        clear = ClearImages(*(part[-1].clone() for part in sums.clear))
        last = {name: getattr(fit, name)[-1].clone() for name in fit._fields}
        return self._replace(counts=sums.counts[-1].clone(), recent=sums.recent[-1].clone(), clear=clear, **last)

    def with_pending(self, columns: Float[Tensor, "n 2"], seen: int) -> MarginHistory:
        """Return the history after `seen` samples, of which the last ones, in `columns`, wait for an update."""
        pending = torch.zeros_like(self.pending)
        pending[: len(columns)] = columns
        counts = torch.full_like(self.seen, seen), torch.full_like(self.waiting, len(columns))
        return self._replace(seen=counts[0], waiting=counts[1], pending=pending)


ON_DEVICE = ("counts", "recent", "clear", "pending", "threshold", "probability", "recall")


def in_host_memory(columns: Tensor, history: MarginHistory) -> tuple[Tensor, MarginHistory]:
    """Return numbers and a history in host memory; from a GPU in one transfer."""
    if not columns.is_cuda:
        return columns, history
    parts = [getattr(history, name) for name in ON_DEVICE]
    flat = [columns, *(part for one in parts for part in (one if isinstance(one, ClearImages) else (one,)))]
    sent = torch.cat([part.double().reshape(-1) for part in flat]).cpu().split([part.numel() for part in flat])
    found = iter([part.reshape(like.shape) for part, like in zip(sent, flat, strict=True)])
    columns = next(found)
    moved: dict[str, Any] = {
        n: ClearImages(next(found), next(found)) if n == "clear" else next(found) for n in ON_DEVICE
    }
    return columns, history._replace(**moved)


class MarginSums(NamedTuple):
    """Margins counted at the nodes, at each of U updates."""

    counts: Float[Tensor, "U N"]
    recent: Float[Tensor, "U N"]
    clear: ClearImages

    def per_sample(self, ends: Float[Tensor, " U"]) -> Float[Tensor, "U N"]:
        """Return the counts over the number of samples at each update, as the mixtures take them."""
        return self.counts / ends[:, None]


def sums_at_updates(
    history: MarginHistory, columns: Float[Tensor, "n 2"], first: int, end: Float[Tensor, " U"], last: int
) -> MarginSums:
    """Return the sums at each update; `columns` are margin and clarity of the samples from `first` to the last end.

    All that came since an update is counted at the next, so that no sum depends on the division into calls.
    """
    margin, clarity = columns.unbind(1)
    number = torch.arange(first + 1, last + 1, dtype=torch.float64, device=columns.device)
    group, updates = torch.bucketize(number, end), len(end)
    weight = torch.stack([number, torch.exp((number - end[group]) / RECENT)])
    counted, late = counts(margin, weight, group, updates)
    age = (end - first) / RECENT
    kept = torch.exp(age - age[:, None]).tril()  # what is left, at each update, of what was gained before each other
    recent = kept @ late + torch.exp(-age)[:, None] * history.recent
    clear = history.clear.then(ClearImages.of(margin, clarity, number, group, updates))
    return MarginSums(history.counts + counted.cumsum(0), recent, clear)
