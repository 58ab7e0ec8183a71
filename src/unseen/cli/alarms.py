"""Alarms of a run: more unknown images than allowed, and a mix of names other than the first images had."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unseen.alarm import AlarmState, MixAlarm, UnknownRateAlarm
from unseen.verdicts import Verdicts

REFERENCE = 512  # images from which the mix is learned


@dataclass
class Alarms:
    """Two sequential tests along a run; verdicts by a threshold that warms up do not count."""

    rule: UnknownRateAlarm
    state: AlarmState = field(init=False)
    mix: MixAlarm | None = None
    mix_state: AlarmState | None = None
    counts: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __post_init__(self) -> None:
        """Start the test of the unknown rate."""
        self.state = self.rule.start()

    def add(self, verdicts: Verdicts) -> Iterator[str]:
        """Take in the next verdicts; yield each alarm that they raise, once, in words."""
        ready = (~verdicts.warming).cpu().numpy()
        known = verdicts.known.cpu().numpy()[ready]
        before, self.state = self.state, self.rule.update(self.state, ~known)
        if before.raised_at is None and self.state.raised_at is not None:
            yield f"more than {100 * self.rule.allowed:g} % of the images are unknown"
        outcome = np.where(known, verdicts.label.cpu().numpy()[ready], len(verdicts.names))
        if self._mix_changes(outcome, len(verdicts.names) + 1):
            yield f"the mix of names is not that of the first {REFERENCE} images"

    def _mix_changes(self, outcome: np.ndarray[Any, Any], kinds: int) -> bool:
        """Whether these outcomes raise the alarm on the mix; the first REFERENCE set its allowed rates."""
        if self.mix is None or self.mix_state is None:
            self.counts = np.bincount(outcome, minlength=kinds) + (0 if self.counts is None else self.counts)
            if self.counts.sum() >= REFERENCE:
                self.mix = MixAlarm.from_outcomes(self.counts, between=self.rule.between)
                self.mix_state = self.mix.start()
            return False
        before, self.mix_state = self.mix_state, self.mix.update(self.mix_state, outcome)
        return before.raised_at is None and self.mix_state.raised_at is not None

    def shown(self) -> dict[str, Any]:
        """The state of both tests as one JSON object."""
        changed = self.mix_state is not None and self.mix_state.raised_at is not None
        return {
            "allowed": self.rule.allowed,
            "between": self.rule.between,
            "evidence": self.rule.share(self.state),
            "unknown_rate_raised": self.state.raised_at is not None,
            "mix_raised": changed,
        }
