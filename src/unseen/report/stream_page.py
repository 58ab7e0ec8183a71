"""The page about one stream: one HTML file with its verdicts, its threshold over time, and thumbnails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unseen.labels import LabelSpace
from unseen.labels.nearest import nearest_negatives
from unseen.report import charts, render
from unseen.session import Session
from unseen.storage.files import replacing
from unseen.verdicts import VERDICTS, Verdict, Verdicts
from unseen.version import __version__


@dataclass(frozen=True)
class PageNumbers:
    """How much of a stream a page shows."""

    side: int = 112  # pixels of a thumbnail on the page
    all: int = 1000  # images of one verdict of which each is shown
    shown: int = 36  # thumbnails at either end of a longer gallery
    names: int = 60  # rows of the label space
    skipped: int = 200  # rows of what could not be read
    photos: int = 48  # that are shown with their regions
    photo_side: int = 720  # pixels of such a photo, enlarged


NUMBERS = PageNumbers()

NOTES = {
    "known": ("Known", "Images with one of your names"),
    "doubtful": ("Doubtful", "Images that pass the threshold, but are more likely unknown than known: look at these"),
    "unknown": ("Unknown", "Images with none of your names"),
}


class Thumbnail(NamedTuple):
    """One image with its verdict and a small JPEG."""

    key: str
    verdict: Verdict
    jpeg: bytes | None


@dataclass
class Gallery:
    """The images of one verdict; of very many those with the highest and the lowest margins."""

    name: str
    note: str
    thumbnails: list[Thumbnail] = field(default_factory=list)
    count: int = 0

    def add(self, thumbnail: Thumbnail) -> None:
        """Add an image; drop those in the middle when there are too many."""
        self.count += 1
        self.thumbnails.append(thumbnail)
        if len(self.thumbnails) > NUMBERS.all:
            first, last = self._ends()
            self.thumbnails = [*first, *last]

    def shown(self) -> tuple[str, str, int, list[list[Thumbnail]]]:
        """Name, note, count and images, highest margin first: all, or those at either end."""
        return self.name, self.note, self.count, [self._ranked()] if self.count <= NUMBERS.all else self._ends()

    def _ranked(self) -> list[Thumbnail]:
        return sorted(self.thumbnails, key=lambda one: -one.verdict.margin)

    def _ends(self) -> list[list[Thumbnail]]:
        ranked = self._ranked()
        return [ranked[: NUMBERS.shown], ranked[-NUMBERS.shown :]]


class MarkedRegion(NamedTuple):
    """A region of a photo with its verdict, as it is drawn: a box in pixels of the photo, and words."""

    box: tuple[float, float, float, float]
    verdict: str
    name: str  # the nearest
    words: str


class MarkedPhoto(NamedTuple):
    """A photo as a small JPEG, its size, and its regions."""

    key: str
    jpeg: bytes
    size: tuple[int, int]
    regions: Sequence[MarkedRegion]


@dataclass
class StreamLog:
    """The verdicts of a run so far, and thumbnails of a bounded number of its images."""

    galleries: dict[str, Gallery] = field(default_factory=lambda: {word: Gallery(*NOTES[word]) for word in VERDICTS})
    skipped: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Verdicts] = field(default_factory=list)
    photos: Sequence[MarkedPhoto] = ()  # where parts of photos were judged

    def add(self, keys: Sequence[str], verdicts: Verdicts, jpegs: Iterable[bytes | None]) -> None:
        """Keep the verdicts on consecutive images."""
        self.parts.append(verdicts)
        for one in map(Thumbnail, keys, verdicts, jpegs):
            self.galleries[one.verdict.verdict].add(one)

    @property
    def verdicts(self) -> Verdicts:
        """The verdicts of the whole run."""
        return Verdicts.joined(self.parts)


class TableSection(NamedTuple):
    """A table of the page, with a title and perhaps a chart."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chart: charts.Chart | None = None

    def is_number(self, column: int) -> bool:
        """Whether a column holds nothing but numbers, which stand to the right."""
        cells = (row[column].strip("%±+- ").replace(",", "").replace(".", "", 1) for row in self.rows)
        return all(cell.isdigit() for cell in cells)


def write(
    path: str | Path, log: StreamLog, session: Session, *, title: str, sections: Sequence[TableSection] = ()
) -> None:
    """Write the page, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(log, session, title=title, sections=sections), encoding="utf-8")


def page(log: StreamLog, session: Session, *, title: str, sections: Sequence[TableSection] = ()) -> str:
    """One HTML page that needs nothing beside it."""
    last = [label_section(session.detector.labels, log)]
    if log.skipped:
        more = f" The first {NUMBERS.skipped} of {len(log.skipped):,}." if len(log.skipped) > NUMBERS.skipped else ""
        note = f"These files could not be read, so they have no verdict and nothing was learned from them.{more}"
        last.append(TableSection("Skipped", note, ("file", "reason"), log.skipped[: NUMBERS.skipped]))
    drawn: dict[str, Any] = {}
    if log.parts:
        verdicts = log.verdicts
        drawn["tiles"] = tiles(log, session)
        drawn["margins"] = charts.histogram(verdicts.margin, verdicts.verdict, session.threshold)
        drawn["track"] = charts.track(verdicts.margin, verdicts.verdict, verdicts.threshold)
        drawn["photos"] = log.photos
        drawn["galleries"] = [one.shown() for one in log.galleries.values() if one.count]
    return render(
        "stream.html",
        title=title,
        about=about(session),
        sections=sections,
        last_sections=last,
        **drawn,
    )


def tiles(log: StreamLog, session: Session) -> list[tuple[str, str]]:
    """The numbers at the top of the page, each by its name."""
    tally = session.snapshot.tally
    found = {
        **{word: f"{one.count:,}" for word, one in log.galleries.items()},
        "skipped": f"{len(log.skipped):,}",
        "learned from": f"{int(tally.taught_known + tally.taught_unknown):,}",
        f"threshold, {session.rule.name}": f"{session.threshold:z.2f}",
    }
    if interval := session.recall_interval:
        found["% of known kept, likely"] = f"{100 * interval.low:.0f} to {100 * interval.high:.0f}"
    return list(found.items())


def about(session: Session) -> str:
    """In one line which encoder, label space and detector judge the images."""
    space = session.detector.labels
    return (
        f"encoder {space.encoder or 'unnamed'} · {space.in_words} (fingerprint {space.fingerprint[:8]}) · "
        f"detector {session.detector.name} · unseen {__version__}"
    )


def label_section(space: LabelSpace, log: StreamLog) -> TableSection:
    """Each name with how often it was the verdict and the negatives nearest to it."""
    called = [0] * len(space.names)
    if log.parts:
        verdicts = log.verdicts
        called = torch.bincount(verdicts.label[~verdicts.unknown], minlength=len(space.names)).tolist()
    near = nearest_negatives(space, 4)
    order = sorted(range(len(space.names)), key=lambda i: -called[i])[: NUMBERS.names]
    rows = [
        (space.names[i], f"{called[i]:,}", ", ".join(f"{p.negative} {p.cosine:.2f}" for p in near[space.names[i]]))
        for i in order
    ]
    more = f" The {NUMBERS.names} most frequent of {len(space.names):,}." if len(space.names) > NUMBERS.names else ""
    note = f"Known names, how many images got each, and the negatives nearest to it in text space.{more}"
    return TableSection("Label space", note, ("name", "images", "nearest negatives"), rows)
