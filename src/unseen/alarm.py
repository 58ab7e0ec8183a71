"""An alarm on the rate of unknown images: a sequential test that may be read after every sample.

The hypothesis is that each image, whatever came before it, is unknown with probability at most `allowed`. For a higher
rate q, the product over a run of images of q / allowed (unknown) or (1 - q) / (1 - allowed) (known) is a bet against it
that gains nothing on average. The evidence sums such products over every moment at which a change may have begun, and
averages them over rates q (a Shiryaev-Roberts e-detector). Under the hypothesis its mean after n images is at most n,
so it reaches `between` after `between` images on average or later: that is the stated rate of false alarms.

    >>> import numpy as np
    >>> rule = UnknownRateAlarm(allowed=0.2, between=10_000)
    >>> state = rule.update(rule.start(), np.zeros(300, bool))     # nothing is unknown
    >>> state.raised_at is None
    True
    >>> rule.update(state, np.ones(40, bool)).raised_at            # the images from number 300 on are unknown
    307
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool

from unseen.errors import SettingError


class AlarmState(NamedTuple):
    """What the test knows: samples seen, evidence for each tested rate, and the sample that raised the alarm."""

    seen: int
    evidence: tuple[float, ...]
    raised_at: int | None = None


@dataclass(frozen=True)
class UnknownRateAlarm:
    """Raise an alarm when more than `allowed` of the images are unknown.

    On average at least `between` images pass before a false alarm, if each is unknown with probability at most
    `allowed` given those before it.

    >>> rule = UnknownRateAlarm(allowed=0.2)
    >>> rule.update(rule.start(), np.ones(40, bool)).raised_at     # forty unknown images in a row
    9
    """

    allowed: float = 0.5
    between: float = 100_000
    rates: tuple[float, ...] = field(init=False)

    # of the rates that are tested, as multiples of the odds of the allowed rate
    odds: ClassVar[tuple[float, ...]] = (1.5, 2.0, 4.0, 16.0)
    block: ClassVar[int] = 64  # samples whose bets are summed at once, so that sums stay in the range of float64

    def __post_init__(self) -> None:
        if not 0 < self.allowed < 1:
            raise SettingError(f"expected an allowed rate between 0 and 1, got {self.allowed}; choose one")
        if self.between < 2:
            raise SettingError(f"expected at least 2 images between false alarms, got {self.between}; choose more")
        allowed = self.allowed / (1 - self.allowed)
        object.__setattr__(self, "rates", tuple(factor * allowed / (1 + factor * allowed) for factor in self.odds))

    def start(self) -> AlarmState:
        """The state before the first sample."""
        return AlarmState(0, (0.0,) * len(self.rates))

    def update(self, state: AlarmState, unknown: Bool[np.ndarray, " n"]) -> AlarmState:
        """The state after more samples; an alarm stays raised until the test is started again.

        Evidence follows R_t = (R_(t-1) + 1) e^{bet_t}; its mean raises the alarm, which then only counts samples.
        """
        rates = np.array(self.rates)[:, None]
        for first in range(0, len(unknown), self.block):
            if state.raised_at is not None:
                return state._replace(seen=state.seen + len(unknown) - first)
            # the logarithm of what a bet on each tested rate gains or loses by each sample
            some = unknown[first : first + self.block]
            bets = np.where(some, np.log(rates / self.allowed), np.log((1 - rates) / (1 - self.allowed)))
            total = np.cumsum(bets, axis=1)
            # R_t = e^{S_t} (R_0 + sum over j <= t of e^{-S_(j-1)})
            paths = np.exp(total) * (np.array(state.evidence)[:, None] + np.cumsum(np.exp(bets - total), axis=1))
            over = np.flatnonzero(paths.mean(0) >= self.between)
            raised = state.seen + int(over[0]) if len(over) else None
            state = AlarmState(state.seen + len(some), tuple(paths[:, -1].tolist()), raised)
        return state

    def share(self, state: AlarmState) -> float:
        """The evidence as a share of what raises the alarm."""
        return min(1.0, float(np.mean(state.evidence)) / self.between) if state.raised_at is None else 1.0


def allowed_rate(unknown: int, seen: int, *, doubt: float = 0.001) -> float:
    """An upper bound of an observed rate, too low with probability at most `doubt` (Hoeffding).

    >>> round(allowed_rate(100, 1000), 3)
    0.159
    """
    if not 0 <= unknown <= seen or not seen:
        raise SettingError(f"expected a count out of those seen, got {unknown} of {seen}; pass both")
    return min(0.99, unknown / seen + math.sqrt(math.log(1 / doubt) / (2 * seen)))
