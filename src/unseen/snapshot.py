"""Everything that a session has learned, as one value that is swapped whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from unseen import checkpoint
from unseen.detectors.state import flatten
from unseen.errors import StateError
from unseen.verdicts import Verdicts


class Tally(NamedTuple):
    """How many samples were observed, called known, and taught each side."""

    seen: Tensor
    known: Tensor
    taught_known: Tensor
    taught_unknown: Tensor

    @classmethod
    def start(cls) -> Tally:
        """The counts before the first sample."""
        return cls(*torch.zeros(4, dtype=torch.int64))

    def after(self, verdicts: Verdicts) -> Tally:
        """The counts after more samples."""
        route = verdicts.output.route
        return Tally(
            self.seen + len(route),
            self.known + (~verdicts.unknown).sum(),
            self.taught_known + (route > 0).sum(),
            self.taught_unknown + (route < 0).sum(),
        )

    def rejudged(self, before: Tally, verdicts: Verdicts) -> Tally:
        """The counts with other verdicts on all samples that came after `before`."""
        return self._replace(known=before.known + (~verdicts.unknown).sum())


class Snapshot(NamedTuple):
    """Everything a session has learned but for the images it keeps."""

    detector: Any
    threshold: Any
    tally: Tally

    def restored(self, found: checkpoint.Checkpoint) -> Snapshot:
        """The snapshot in a file that holds one of this kind, and perhaps images; an old threshold begins anew."""
        fresh, states = self._asdict(), found.states
        if unknown := states.keys() - fresh.keys() - {"reservoir", "told"}:
            raise StateError(f"expected states {sorted(fresh)}, got {sorted(unknown)} besides; pass the right file")
        if found.version <= checkpoint.OLD_THRESHOLDS:
            states = {"threshold": flatten(self.threshold)} | states
        return Snapshot(
            **{name: checkpoint.restore_state(start, states.get(name, {})) for name, start in fresh.items()}
        )
