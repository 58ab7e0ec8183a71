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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

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
        """The state after more samples; an alarm stays raised until the test is started again."""
        return state_after(state, unknown, self.bets, self.between)

    def bets(self, unknown: Bool[np.ndarray, " n"]) -> Float[np.ndarray, "r n"]:
        """The logarithm of what a bet on each tested rate gains or loses by each sample."""
        rates = np.array(self.rates)[:, None]
        return np.where(unknown, np.log(rates / self.allowed), np.log((1 - rates) / (1 - self.allowed)))

    def share(self, state: AlarmState) -> float:
        """The evidence as a share of what raises the alarm."""
        return min(1.0, float(np.mean(state.evidence)) / self.between) if state.raised_at is None else 1.0


@dataclass(frozen=True)
class MixAlarm:
    """Raise an alarm when some outcome comes more often than its allowed rate: a changed mix of names.

    The evidence is the mean of that of one `UnknownRateAlarm` per outcome, so false alarms are as rare as its own: on
    average at least `between` images apart, if each outcome has at most its allowed rate given what came before.

    >>> rule = MixAlarm.from_outcomes(np.array([50, 50, 900]))           # of 1,000 images, 900 had the third outcome
    >>> rule.update(rule.start(), np.zeros(60, int)).raised_at     # from now on all have the first
    7
    """

    allowed: tuple[float, ...]
    between: float = 100_000
    rules: tuple[UnknownRateAlarm, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Make one test per outcome."""
        object.__setattr__(self, "rules", tuple(UnknownRateAlarm(rate, self.between) for rate in self.allowed))

    @classmethod
    def from_outcomes(cls, counts: Int[np.ndarray, " k"], *, between: float = 100_000) -> MixAlarm:
        """The alarm on a mix that was observed: bounds of all rates, one too low with probability .001."""
        seen, doubt = int(counts.sum()), 0.001 / max(len(counts), 1)
        return cls(tuple(max(0.01, allowed_rate(int(count), seen, doubt=doubt)) for count in counts), between)

    def start(self) -> AlarmState:
        """The state before the first sample."""
        return AlarmState(0, (0.0,) * (len(UnknownRateAlarm.odds) * len(self.rules)))

    def update(self, state: AlarmState, outcome: Int[np.ndarray, " n"]) -> AlarmState:
        """The state after more samples, given the number of each one's outcome."""
        return state_after(state, outcome, self.bets, self.between)

    def bets(self, outcome: Int[np.ndarray, " n"]) -> Float[np.ndarray, "r n"]:
        """The bets of every test."""
        return np.concatenate([rule.bets(outcome == k) for k, rule in enumerate(self.rules)])


def state_after(
    state: AlarmState,
    samples: Shaped[np.ndarray, " n"],
    bets: Callable[[np.ndarray], Float[np.ndarray, "r n"]],
    between: float,
    *,
    block: int = 64,
) -> AlarmState:
    """The state after samples, `block` at a time, so that sums stay in the range of float64.

    Evidence follows R_t = (R_(t-1) + 1) e^{bet_t}; its mean raises the alarm, which then only counts samples.
    """
    for first in range(0, len(samples), block):
        if state.raised_at is not None:
            return state._replace(seen=state.seen + len(samples) - first)
        steps = bets(samples[first : first + block])
        total = np.cumsum(steps, axis=1)
        # R_t = e^{S_t} (R_0 + sum over j <= t of e^{-S_(j-1)})
        paths = np.exp(total) * (np.array(state.evidence)[:, None] + np.cumsum(np.exp(steps - total), axis=1))
        over = np.flatnonzero(paths.mean(0) >= between)
        raised = state.seen + int(over[0]) if len(over) else None
        state = AlarmState(state.seen + paths.shape[1], tuple(paths[:, -1].tolist()), raised)
    return state


def allowed_rate(unknown: int, seen: int, *, doubt: float = 0.001) -> float:
    """An upper bound of an observed rate, too low with probability at most `doubt` (Hoeffding).

    >>> round(allowed_rate(100, 1000), 3)
    0.159
    """
    if not 0 <= unknown <= seen or not seen:
        raise SettingError(f"expected a count out of those seen, got {unknown} of {seen}; pass both")
    return min(0.99, unknown / seen + math.sqrt(math.log(1 / doubt) / (2 * seen)))


@dataclass
class StreamAlarms:
    """Two tests along a stream: more unknown images than allowed, and a mix of names unlike that of its beginning."""

    rule: UnknownRateAlarm
    reference: int = field(default=512)  # images whose mix of names is the usual one
    state: AlarmState = field(init=False)
    mix: MixAlarm | None = None
    mix_state: AlarmState | None = None
    counts: Int[np.ndarray, " k"] | None = None

    def __post_init__(self) -> None:
        """Start the test of the unknown rate."""
        self.state = self.rule.start()

    def add(self, outcome: Int[np.ndarray, " n"], *, names: int) -> Iterator[str]:
        """Take in more images, each the place of its name or `names` if unknown; yield each alarm once, in words."""
        before, self.state = self.state, self.rule.update(self.state, outcome == names)
        if before.raised_at is None and self.state.raised_at is not None:
            yield f"more than {100 * self.rule.allowed:g} % of the images are unknown"
        if self.mix is None or self.mix_state is None:  # the first outcomes set the allowed rates of the mix
            self.counts = np.bincount(outcome, minlength=names + 1) + (0 if self.counts is None else self.counts)
            if self.counts.sum() >= self.reference:
                self.mix = MixAlarm.from_outcomes(self.counts, between=self.rule.between)
                self.mix_state = self.mix.start()
            return
        before, self.mix_state = self.mix_state, self.mix.update(self.mix_state, outcome)
        if before.raised_at is None and self.mix_state.raised_at is not None:
            yield f"the mix of names is not that of the first {self.reference} images"

    def shown(self) -> dict[str, Any]:
        """The state of both tests as one JSON object."""
        return {
            "allowed": self.rule.allowed,
            "between": self.rule.between,
            "evidence": self.rule.share(self.state),
            "unknown_rate_raised": self.state.raised_at is not None,
            "mix_raised": self.mix_state is not None and self.mix_state.raised_at is not None,
        }
