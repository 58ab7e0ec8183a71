"""TANL (CVPR 2026): of all negatives, those that unknown images wake and known images leave asleep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.nn.functional import logsigmoid

from unseen.detectors.base import Detector, Reading, in_range, positive
from unseen.odds import energy

# Shares are kept as integers: sums over the window are then exact, whatever entered or left it and in which calls, so
# that cuts which split the window alike tie exactly.
UNIT = 2**20
CUTS = 100  # the threshold is one of 0, 0.01, ... 0.99
KNOWN, UNKNOWN = 0, 1


class Queues(NamedTuple):
    """What the last confident images of each side, known first, made of the negatives; and the last shares."""

    activation: Float[Tensor, "2 Q L"]
    total: Float[Tensor, "2 L"]  # the sum over each queue
    seen: Int[Tensor, " 2"]
    shares: Int32[Tensor, " W"]
    scored: Int[Tensor, ""]


@dataclass(frozen=True, eq=False)
class TANL(Detector[Queues]):
    """Choose the negatives by what confident images of the stream activate, and score by the most active first.

    The label space's negatives are the corpus. The known names' own text seeds the known queue; the published seed of
    the unknown queue, noise images, needs an encoder, so here it starts empty: at first the negatives furthest from
    the known names count. Each sample teaches, then is scored, alone: the published variant that adapts to a batch
    of 256 is transductive.
    """

    tau: float = 0.01
    queue: int = 300
    top: int = 1000  # all of them where there are fewer negatives
    window: int = 20_000  # shares that the threshold is drawn from
    gap: float = 0.5  # a confident share is this far from the threshold to 1 or to 0

    name: ClassVar[str] = "tanl"
    needs_negatives: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        positive(tau=self.tau)
        in_range("queue", self.queue, 1, 1_000_000)
        in_range("top", self.top, 1, 1_000_000)
        in_range("window", self.window, 1, 1_000_000)
        in_range("gap", self.gap, 0, 1)

    def start(self) -> Queues:
        """Return a known queue of what the known names' text activates, an empty unknown queue and an empty window."""
        anchors = self.labels.id_anchors
        seeds = min(self.queue, len(anchors))
        activation = anchors.new_zeros(2, self.queue, len(self.labels.negatives))
        # the mean, so that no name counts more than another when there are more names than places
        activation[KNOWN, :seeds] = self._activate(anchors)[2].mean(dim=0)
        return Queues(
            activation=activation,
            total=activation.sum(dim=1),
            seen=torch.tensor([seeds, 0], device=anchors.device),
            shares=torch.zeros(self.window, dtype=torch.int32, device=anchors.device),
            scored=torch.zeros((), dtype=torch.int64, device=anchors.device),
        )

    def read(self, state: Queues, z: Float[Tensor, "T d"]) -> Reading:
        """Score a block with the queues as they are."""
        known, negative, _ = self._activate(z)
        return Reading.frozen(self._score(state, energy(known), negative), known.argmax(dim=1))

    def learn(self, state: Queues, z: Float[Tensor, "T d"]) -> tuple[Reading, Queues]:
        """Let the confident samples of a block teach in order, and score each right after its own turn."""
        known, negative, activation = self._activate(z)
        mass = energy(known)
        queues = Queues(*(part.clone() for part in state))
        histogram = _Histogram(queues)
        score, route = torch.empty_like(mass), torch.zeros(len(z), dtype=torch.int8, device=z.device)
        for t in range(len(z)):
            score[t] = self._score(queues, mass[t : t + 1], negative[t : t + 1])[0]
            share = torch.sigmoid(score[t].double())
            histogram.push(int((share * UNIT).round()))
            side = self._side(float(share), histogram.threshold())
            if side is not None:
                self._push(queues, side, activation[t])
                score[t] = self._score(queues, mass[t : t + 1], negative[t : t + 1])[0]
                route[t] = 1 if side == KNOWN else -1
        return Reading.of(score, known.argmax(dim=1), route), queues

    def _activate(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits of the known and of the negative names, and the probability of each negative among all."""
        known = z @ self.labels.id_anchors.T / self.tau
        negative = z @ self.labels.ood_anchors.T / self.tau
        total = torch.logaddexp(energy(known), energy(negative))
        return known, negative, (negative - total.unsqueeze(1)).exp()

    def _score(self, queues: Queues, known: Float[Tensor, " T"], negative: Float[Tensor, "T L"]) -> Float[Tensor, " T"]:
        """Return the log-odds of the known names' mean share against the 1, 2, ... top most active negatives."""
        count = queues.seen.clamp(min=1, max=self.queue).unsqueeze(1)
        mean = queues.total / count
        active = (mean[UNKNOWN] - mean[KNOWN]).topk(min(self.top, negative.shape[1])).indices
        odds = known.unsqueeze(1) - torch.logcumsumexp(negative[:, active], dim=1)
        return energy(logsigmoid(odds)) - energy(logsigmoid(-odds))

    def _side(self, share: float, threshold: float) -> int | None:
        if share > threshold + self.gap * (1 - threshold):
            return KNOWN
        return UNKNOWN if share < threshold - self.gap * threshold else None

    def _push(self, queues: Queues, side: int, activation: Float[Tensor, " L"]) -> None:
        queue = queues.activation[side]
        queue[int(queues.seen[side]) % self.queue] = activation
        # summed anew: to subtract what leaves would bury the faint activations under the rounding of the strong ones
        queues.total[side] = queue.sum(dim=0)
        queues.seen[side] += 1


class _Histogram:
    """The window of shares in bins of one cut: a push and a threshold cost the same however long the window is."""

    def __init__(self, queues: Queues) -> None:
        self.shares, self.scored = queues.shares, queues.scored
        live = self.shares[: int(self.scored)].long()
        bins = live * CUTS // UNIT
        self.count = torch.bincount(bins, minlength=CUTS + 1)
        self.total = torch.zeros_like(self.count).index_add_(0, bins, live)

    def push(self, share: int) -> None:
        """Add a share; the oldest leaves a full window."""
        place, full = int(self.scored) % len(self.shares), int(self.scored) >= len(self.shares)
        if full:
            self._add(int(self.shares[place]), -1)
        self._add(share, 1)
        self.shares[place] = share
        self.scored.add_(1)

    def threshold(self) -> float:
        """Return the cut with the least variance within its two sides, the middle one of equals (0.5 of one sample)."""
        above, above_total = (part.flip(0).cumsum(0).flip(0)[:CUTS].double() for part in (self.count, self.total))
        below, below_total = self.count.sum() - above, self.total.sum() - above_total
        # least variance within = most between: the sum of squares is the same for every cut
        between = above_total.square() / above + below_total.square() / below
        between = torch.where((above > 0) & (below > 0), between, -torch.inf)
        best = (between == between.max()).nonzero().squeeze(1)
        return float(best[len(best) // 2]) / CUTS

    def _add(self, share: int, times: int) -> None:
        place = share * CUTS // UNIT
        self.count[place] += times
        self.total[place] += times * share
