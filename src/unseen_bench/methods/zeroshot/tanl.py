"""TANL (CVPR 2026): NegLabel over the negatives that unknown images activate and known images do not."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from unseen.detectors.base import Detector, DetectorOutput, above_zero, setting, unit
from unseen.odds import energy

# Shares are kept as integers: sums over the window are then exact, whatever entered or left it and in which calls, so
# that thresholds which split the window alike tie exactly.
SHARE_UNIT = 2**20
THRESHOLDS = 100  # the threshold is one of 0, 0.01, ... 0.99
KNOWN, UNKNOWN = 0, 1


class Queues(NamedTuple):
    """The activations of the negatives by the last confident images of each side, known first; and the last shares."""

    activation: Float[Tensor, "2 Q L"]
    total: Float[Tensor, "2 L"]  # the sum over each queue
    seen: Int[Tensor, " 2"]
    shares: Int32[Tensor, " W"]
    scored: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class TANL(Detector[Queues]):
    """Choose the negatives by what confident images of the stream activate, and score by the most active first.

    The label space's negatives are the corpus. The known names' own text seeds the known queue. `noise`, features of
    noise images, seeds the unknown queue as published, and the shares of both seeds open the window of the threshold.
    Without it, which needs an encoder, the unknown queue and the window start empty: at first the negatives furthest
    from the known names are used. Each sample teaches, then is scored, by itself: the published variant that adapts to
    a batch of 256 is transductive.
    """

    tau: float = above_zero(0.01)
    queue: int = setting(300, 1, 1_000_000)
    top: int = setting(1000, 1, 1_000_000)  # all of them where there are fewer negatives
    window: int = setting(20_000, 1, 1_000_000)  # shares that the threshold is computed from
    gap: float = setting(0.5, 0, 1)  # a confident share is this far from the threshold to 1 or to 0
    noise: Float[Tensor, "n d"] | None = None

    name: ClassVar[str] = "tanl"
    needs_negatives: ClassVar[bool] = True

    @property
    def settings(self) -> dict[str, object]:
        """Every option by name; noise images, where there are any, as their number and sum."""
        options = {name: value for name, value in super().settings.items() if name != "noise"}
        if self.noise is not None:
            options["noise"] = [len(self.noise), round(float(self.noise.double().sum()), 6)]
        return options

    def start(self) -> Queues:
        """Queues of what the known names' text and the noise images activate, and the window they open."""
        anchors = self.labels.id_anchors
        noise = anchors[:0] if self.noise is None else unit(self.noise.to(anchors.device), like=anchors)[: self.queue]
        seeds = [min(self.queue, len(anchors)), len(noise)]
        activation = anchors.new_zeros(2, self.queue, len(self.labels.negatives))
        # the mean, so that no name counts more than another when there are more names than places
        activation[KNOWN, : seeds[KNOWN]] = self._activate(anchors)[2].mean(dim=0)
        activation[UNKNOWN, : seeds[UNKNOWN]] = self._activate(noise)[2]
        queues = Queues(
            activation=activation,
            total=_totals(activation),
            seen=torch.tensor(seeds, device=anchors.device),
            shares=torch.zeros(self.window, dtype=torch.int32, device=anchors.device),
            scored=torch.zeros((), dtype=torch.int64, device=anchors.device),
        )
        if not len(noise):
            return queues
        shares = self.read(queues, torch.cat([anchors, noise])).score.double().sigmoid()[-self.window :]
        queues.shares[: len(shares)] = (shares * SHARE_UNIT).round().int()
        return queues._replace(scored=queues.scored + len(shares))

    def read(self, state: Queues, z: Float[Tensor, "T d"]) -> DetectorOutput:
        known, negative, _ = self._activate(z)
        active = self._active(state.total.cpu().numpy(), state.seen.tolist())
        score = _log_odds(_array(energy(known)), _array(negative)[:, active])
        return DetectorOutput.frozen(torch.from_numpy(score).to(z), known.argmax(dim=1))

    def learn(self, state: Queues, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Queues]:
        """Let the confident samples of a block teach in order, and score each right after its own update."""
        known, negative, activation = self._activate(z)
        mass, logits, rows = _array(energy(known)), _array(negative), activation.cpu().numpy()
        queues = Queues(*(part.cpu().clone() for part in state))
        histogram, seen = _Histogram(queues), state.seen.tolist()
        sides = [_Queue(side) for side in queues.activation.numpy()]
        active = self._active([side.total for side in sides], seen)
        score, route = np.empty(len(z)), np.zeros(len(z), np.int8)
        for t in range(len(z)):
            score[t] = _log_odds(mass[t], logits[t][active])
            share = 1 / (1 + math.exp(-score[t]))
            histogram.push(round(share * SHARE_UNIT))
            side = self._side(share, histogram.threshold())
            if side is not None:
                sides[side].push(seen[side] % self.queue, rows[t])
                seen[side] += 1
                active = self._active([side.total for side in sides], seen)
                score[t] = _log_odds(mass[t], logits[t][active])
                route[t] = 1 if side == KNOWN else -1
        total = torch.from_numpy(np.stack([side.total for side in sides]))
        after = queues._replace(total=total, seen=torch.tensor(seen), scored=queues.scored + len(z))
        on_device = Queues(*(part.to(z.device) for part in after))
        return DetectorOutput.of(
            torch.from_numpy(score).to(z), known.argmax(dim=1), torch.from_numpy(route).to(z.device)
        ), on_device

    def _activate(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of the known and of the negative names, and the probability of each negative among all."""
        known = z @ self.labels.id_anchors.T / self.tau
        negative = z @ self.labels.ood_anchors.T / self.tau
        total = torch.logaddexp(energy(known), energy(negative))
        return known, negative, (negative - total.unsqueeze(1)).exp()

    def _active(self, total: Any, seen: list[int]) -> Any:
        """The negatives by how much more unknown images activate them than known ones do, the most first."""
        counts = [min(max(count, 1), self.queue) for count in seen]
        known_excess = total[KNOWN] / counts[KNOWN] - total[UNKNOWN] / counts[UNKNOWN]
        if len(known_excess) <= self.top:
            return known_excess.argsort(kind="stable")
        # of equals the first in the label space, whatever order a partition leaves them in
        last = np.partition(known_excess, self.top - 1)[self.top - 1]
        before = (known_excess < last).nonzero()[0]
        equals = (known_excess == last).nonzero()[0][: self.top - len(before)]
        return np.concatenate([before[known_excess[before].argsort(kind="stable")], equals])

    def _side(self, share: float, threshold: float) -> int | None:
        if share > threshold + self.gap * (1 - threshold):
            return KNOWN
        return UNKNOWN if share < threshold - self.gap * threshold else None


def _totals(activation: Float[Tensor, "2 Q L"]) -> Float[Tensor, "2 L"]:
    """The sum over each queue; in host memory the one that a push would make."""
    if activation.is_cuda:
        return activation.sum(1)
    return torch.from_numpy(np.stack([_Queue(side).total for side in activation.numpy()]))


def _array(tensor: Tensor) -> Any:
    """Logits as an array in float64: NumPy's calls on one row cost a third of torch's."""
    return tensor.double().cpu().numpy()


def _log_odds(known: Any, negative: Any) -> Any:
    """The log-odds of the known names' mean share against the first 1, 2, ... of the negatives given."""
    peak = negative.max(axis=-1, keepdims=True)
    rivals = np.exp(negative - peak).cumsum(axis=-1)
    mass = np.exp(np.clip(known[..., None] - peak, -700, 700))  # float64 overflows at 709; real logits span 200
    whole = mass + rivals
    return np.log((mass / whole).mean(axis=-1)) - np.log((rivals / whole).mean(axis=-1))


class _Queue:
    """The activations of one side, with their sum kept up to date.

    To subtract what leaves would bury the faint activations under the rounding of the strong ones, so the sum is made
    anew, but out of partial sums of which a push changes one.
    """

    def __init__(self, rows: Any) -> None:
        self.rows, self.size = rows, math.isqrt(len(rows))
        starts = range(0, len(rows), self.size)
        self.parts = np.stack([rows[start : start + self.size].sum(axis=0) for start in starts])
        self.total = self.parts.sum(axis=0)

    def push(self, place: int, row: Any) -> None:
        """Put an activation into its place."""
        self.rows[place] = row
        start = place - place % self.size
        self.parts[start // self.size] = self.rows[start : start + self.size].sum(axis=0)
        self.total = self.parts.sum(axis=0)


class _Histogram:
    """The window of shares, counted above each threshold: the cost of a push does not depend on the window's length."""

    def __init__(self, queues: Queues) -> None:
        self.shares, self.scored = queues.shares.numpy(), int(queues.scored)
        self.above, self.above_total = np.zeros(THRESHOLDS + 1, np.int64), np.zeros(THRESHOLDS + 1, np.int64)
        live = self.shares[: self.scored].astype(np.int64)
        np.add.at(self.above, live * THRESHOLDS // SHARE_UNIT, 1)
        np.add.at(self.above_total, live * THRESHOLDS // SHARE_UNIT, live)
        self.above, self.above_total = (part[::-1].cumsum()[::-1] for part in (self.above, self.above_total))

    def push(self, share: int) -> None:
        """Add a share; the oldest leaves a full window."""
        place = self.scored % len(self.shares)
        if self.scored >= len(self.shares):
            self._add(int(self.shares[place]), -1)
        self._add(share, 1)
        self.shares[place] = share
        self.scored += 1

    def threshold(self) -> float:
        """The threshold with the least variance within its two sides, the middle one of equals."""
        above, total = self.above[:THRESHOLDS], self.above_total[:THRESHOLDS].astype(np.float64)
        below, below_total = above[0] - above, total[0] - total
        # least variance within = most between: the sum of squares is the same for every threshold
        between = total * total / np.maximum(above, 1) + below_total * below_total / np.maximum(below, 1)
        between[(above == 0) | (below == 0)] = -math.inf
        best = (between == between.max()).nonzero()[0]
        return float(best[len(best) // 2]) / THRESHOLDS

    def _add(self, share: int, times: int) -> None:
        stop = share * THRESHOLDS // SHARE_UNIT + 1
        self.above[:stop] += times
        self.above_total[:stop] += times * share
