"""Photos that show known names for certain: they tell the threshold, or set it alone where a guarantee is wanted.

They are checked before anything is encoded. Loads torch: commands import it when they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.cli import output, spaces
from unseen.cli.known import SHOWN, encode_photos, is_features, warn_odd
from unseen.encoders import Encoder
from unseen.errors import DataError
from unseen.features import load_features
from unseen.images import Entry, find_images
from unseen.labels.examples import comparable_name
from unseen.threshold import Adaptive, Calibrated, Calibration
from unseen.threshold.base import check_recall
from unseen.threshold.calibrated import check_images


@dataclass
class KnownImages:
    """Photos, or features of some, that are known to be known, and how they set the threshold."""

    source: str
    entries: Iterable[Entry] | None  # None where the source holds features
    recall: float | None = None  # that of the state, or the usual one
    guarantee: bool = False
    keep_odd: bool = False
    z: Float[Tensor, "n d"] = field(default_factory=lambda: torch.empty(0, 0))  # once they are read
    keys: Sequence[str] = ()
    skipped: int = 0  # that could not be read
    due: int = 0  # images of the stream at which to calibrate again

    @classmethod
    def find(
        cls, source: str, recall: float | None = None, *, guarantee: bool = False, keep_odd: bool = False
    ) -> KnownImages:
        """The images of a source; refuse too few for a guarantee before anything is encoded."""
        check_recall(wanted := Adaptive.recall if recall is None else recall)
        if is_features(source):
            return cls(source, None, recall, guarantee, keep_odd)
        try:
            entries = find_images(source)
        except DataError as error:
            raise DataError(f"{error}; --calibrate and `unseen calibrate` need photos of your names") from error
        if guarantee and isinstance(entries, Sized):
            check_images(len(entries), wanted)
        return cls(source, entries, recall, guarantee, keep_odd)

    def read(self, space: LabelSpace, model: Encoder | None = None) -> None:
        """Take in the features of those with known names; an encoder is loaded where one is needed and none given."""
        if self.entries is None:
            features = load_features(self.source)
            space.check_vectors(features.z.shape[1], features.made_by, "features")
            rows = self._known_rows(features.keys, space)
            self.z, self.keys = features.z[rows], [features.keys[row] for row in rows]
            return
        entries = list(self.entries)
        photos = [entries[row] for row in self._known_rows([entry.path for entry in entries], space)]
        self.z, self.keys, self.skipped = encode_photos(photos, model or spaces.encoder_of(space), self.source)

    def calibrate(self, session: Session) -> Calibration:
        """Calibrate a session; warn about images that look unlike their class, and about examples."""
        examples = session.detector.labels.examples
        if examples is not None and (count := int(examples.contains(self.z).sum())):
            output.warn(
                f"{count} of {len(self.keys)} calibration images are among the examples, towards which names were "
                "moved: fewer new images are kept than promised; calibrate with others"
            )
        found = session.calibrate(self.z, recall=self.recall, guarantee=self.guarantee, keep_odd=self.keep_odd)
        warn_odd([self.keys[row] for row in found.odd])
        return found

    def follow(self, session: Session, *, last: bool = False) -> None:
        """Renew a guarantee whenever the stream has grown by an eighth: margins move while a detector learns.

        Without one the session itself looks at its photos again.
        """
        seen = int(session.snapshot.tally.seen)
        if isinstance(session.rule, Calibrated) and (seen >= self.due or last):
            session.calibrate(self.z, recall=session.rule.recall, guarantee=True)
            self.due = seen + max(1, seen // 8)

    def _known_rows(self, keys: Sequence[str], space: LabelSpace) -> list[int]:
        """Which images show known names, as far as their folders say; those of another class are left out.

        A folder is of another class if it is called like a name that was retired, or if other folders are called like
        names.
        """
        known = set(map(comparable_name, space.names))
        gone = {
            comparable_name(word)
            for word, one in zip(space.negatives, space.origins, strict=False)
            if one.kind == "never"
        }
        folder = [comparable_name(Path(key).parent.name) for key in keys]
        is_sorted = not known.isdisjoint(folder)
        foreign = {one for one in folder if one not in known and (is_sorted or one in gone)}
        rows = [row for row, one in enumerate(folder) if one not in foreign]
        shown, names = ", ".join(sorted(foreign)[:SHOWN]), ", ".join(space.names[:SHOWN])
        if keys and not rows:
            raise DataError(
                f"expected photos of known names in {self.source}, got those of {shown} alone; known are {names}"
                + (" ..." if len(space.names) > SHOWN else "")
            )
        if foreign:
            output.warn(f"{shown}: no known name, {len(keys) - len(rows):,} of {len(keys):,} photos are left out")
        return rows
