"""What a session has learned, as one value that is swapped whole, and what it has been told."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen import checkpoint
from unseen.detectors.state import flatten
from unseen.errors import StateError
from unseen.labels.examples import NUMBERS as EXAMPLES
from unseen.threshold.base import Corrected
from unseen.verdicts import Verdicts

FIRST_INTERVAL = 16  # images between two looks at what was told, up to 128; then a quarter to an eighth of the stream


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
        route = verdicts.route
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


class ToldImages(NamedTuple):
    """Images whose side is told: photos of the names, then corrected verdicts."""

    z: Float[Tensor, "n d"]
    known: Bool[Tensor, " n"]
    is_photo: Bool[Tensor, " n"]

    @classmethod
    def none(cls, dim: int) -> ToldImages:
        """No image of a width."""
        return cls(torch.zeros(0, dim), *(torch.zeros(0, dtype=torch.bool) for _ in range(2)))

    def and_photos(self, z: Float[Tensor, "m d"]) -> ToldImages:
        """These images, and photos of known names that are not among them: a calibration may be repeated."""
        if len(self.z) and len(z):
            z = z[(z.to(self.z) @ self.z.T).amax(1) < EXAMPLES.same_image]
        sure = torch.ones(len(z), dtype=torch.bool)
        return self._and(ToldImages(z, sure, sure))

    def and_corrected(self, z: Float[Tensor, "m d"], known: Bool[Tensor, " m"]) -> ToldImages:
        """These images, and some whose verdict is corrected."""
        return self._and(ToldImages(z, known, torch.zeros(len(z), dtype=torch.bool)))

    def select(self, rows: Bool[Tensor, " n"]) -> ToldImages:
        """Some of the images."""
        return ToldImages(*(part[rows] for part in self))

    def by_kind(self, margin: Float[Tensor, " n"]) -> tuple[Float[Tensor, " p"], Corrected]:
        """The margins of these images: those of the photos, and those of corrected verdicts."""
        return margin[self.is_photo], Corrected(margin[~self.is_photo], self.known[~self.is_photo])

    def _and(self, more: ToldImages) -> ToldImages:
        return ToldImages(*(torch.cat([a, b.detach().to(a)]) for a, b in zip(self, more, strict=True)))


def until_look(seen: int) -> int:
    """After how many images of a stream what was told is looked at again: a fixed count, whatever the calls."""
    interval = max(FIRST_INTERVAL, 1 << max(0, seen.bit_length() - 3))
    return interval - seen % interval
