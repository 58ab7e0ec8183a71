"""The page about one stream: one HTML file with its verdicts, its threshold over time, and thumbnails."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch

from unseen.labels import LabelSpace
from unseen.labels.nearest import nearest_negatives
from unseen.report import charts
from unseen.report.pictures import Gallery, ImagePages, Thumbnail, document
from unseen.session import Session
from unseen.storage.files import replacing
from unseen.verdicts import Verdicts
from unseen.version import __version__

SIDE = 112  # pixels of a thumbnail on the page
NAMES = 60  # rows of the label space
SKIPPED = 200


@dataclass
class StreamLog:
    """The verdicts of a run so far, thumbnails of a few images, and pages of all of them on disk."""

    known: Gallery = field(default_factory=Gallery)
    unknown: Gallery = field(default_factory=Gallery)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Verdicts] = field(default_factory=list)
    pages: ImagePages | None = None  # where all images are shown

    @classmethod
    def beside(cls, report: Path) -> "StreamLog":
        """An empty log whose pages lie beside a report that will be written."""
        return cls(pages=ImagePages.beside(report))

    def add(self, keys: Sequence[str], verdicts: Verdicts, jpegs: Iterable[bytes | None]) -> None:
        """Keep the verdicts on consecutive images."""
        self.parts.append(verdicts)
        for key, verdict, jpeg in zip(keys, verdicts, jpegs, strict=True):
            for place in (self.known if verdict.known else self.unknown, self.pages):
                if place is not None:
                    place.add(Thumbnail(key, verdict, jpeg))

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
    chart: str = ""


def write(
    path: str | Path, log: StreamLog, session: Session, *, title: str, sections: Sequence[TableSection] = ()
) -> None:
    """Write the page, whole or not at all, and what is left of the pages of all images."""
    if log.pages:
        log.pages.close()
    with replacing(path) as temporary:
        temporary.write_text(page(log, session, title=title, sections=sections), encoding="utf-8")


def page(log: StreamLog, session: Session, *, title: str, sections: Sequence[TableSection] = ()) -> str:
    """One HTML page that needs nothing beside it."""
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(about(session))}</p>",
        _stream(log, session) if log.parts else "<p>No image could be read.</p>",
        *map(_section, sections),
        _galleries(log) if log.parts else "",
        _section(label_section(session.detector.labels, log)),
        _skipped_section(log.skipped),
    ]
    return document(title, "".join(parts))


def about(session: Session) -> str:
    """In one line which encoder, label space and detector judge the images."""
    space = session.detector.labels
    mined = ", ".join(
        part
        for part in (
            space.manifest.get("corpus", ""),
            f"miner {space.manifest['miner']}" if "miner" in space.manifest else "",
            f"fingerprint {space.fingerprint[:8]}",
        )
        if part
    )
    return (
        f"encoder {space.encoder or 'unnamed'} · {len(space.names):,} name{'s' * (len(space.names) != 1)} + "
        f"{len(space.negatives):,} negatives "
        f"({mined}) · detector {session.detector.name} · unseen {__version__}"
    )


def label_section(space: LabelSpace, log: StreamLog) -> TableSection:
    """Each name with how often it was the verdict and the negatives nearest to it."""
    called = [0] * len(space.names)
    if log.parts:
        verdicts = log.verdicts
        called = torch.bincount(verdicts.label[verdicts.known], minlength=len(space.names)).tolist()
    near = nearest_negatives(space, 4)
    order = sorted(range(len(space.names)), key=lambda i: -called[i])[:NAMES]
    rows = []
    for i in order:
        pairs = near[space.names[i]]
        rows.append((space.names[i], f"{called[i]:,}", ", ".join(f"{p.negative} {p.cosine:.2f}" for p in pairs)))
    more = f" The {NAMES} most frequent of {len(space.names):,}." if len(space.names) > NAMES else ""
    note = f"Known names, how many images got each, and the negatives nearest to it in text space.{more}"
    return TableSection("Label space", note, ("name", "images", "nearest negatives"), rows)


def _stream(log: StreamLog, session: Session) -> str:
    verdicts, tally = log.verdicts, session.snapshot.tally
    known = int(verdicts.known.sum())
    tiles = {
        "known": f"{known:,}",
        "unknown": f"{len(verdicts) - known:,}",
        "skipped": f"{len(log.skipped):,}",
        "learned from": f"{int(tally.taught_known + tally.taught_unknown):,}",
        f"threshold, {session.rule.name}": f"{'~' * session.is_warming}{session.threshold:z.2f}",
    }
    if interval := session.recall_interval:
        tiles["% of known kept, likely"] = f"{100 * interval.low:.0f} to {100 * interval.high:.0f}"
    parts = [
        f'<div class="tiles">{"".join(_tile(what, value) for what, value in tiles.items())}</div>',
        "<h2>Margins</h2><p>Score less baseline, in nats, with the threshold at the end of the stream. An image is "
        "known if its margin is at least the threshold at its arrival, so early verdicts may differ from this chart. "
        "Margins beyond an edge are counted in the outermost bar.</p>",
        legend("known", "unknown", "threshold"),
        charts.histogram(verdicts.margin, verdicts.known, session.threshold),
        "<h2>Over time</h2><p>Every image in order of arrival, and the threshold that each of them met.</p>",
        charts.track(verdicts.margin, verdicts.known, verdicts.threshold),
    ]
    return "".join(parts)


def _galleries(log: StreamLog) -> str:
    known = int(log.verdicts.known.sum())
    sections = [
        log.known.section("Known", "Images with one of your names", known),
        log.unknown.section("Unknown", "Images with none of your names", len(log.verdicts) - known),
        log.pages.section() if log.pages else "",
    ]
    return "".join(sections)


def _section(section: TableSection) -> str:
    number = [all(_is_number(row[i]) for row in section.rows) for i in range(len(section.head))]
    marks = [' class="number"' if is_number else "" for is_number in number]
    head = "".join(f"<th{mark}>{escape(cell)}</th>" for mark, cell in zip(marks, section.head, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in section.rows
    )
    body = f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    return f"<h2>{escape(section.title)}</h2><p>{escape(section.note)}</p>{section.chart}{body}"


def _skipped_section(skipped: Sequence[tuple[str, str]]) -> str:
    if not skipped:
        return ""
    more = f" The first {SKIPPED} of {len(skipped):,}." if len(skipped) > SKIPPED else ""
    note = f"These files could not be read, so they have no verdict and nothing was learned from them.{more}"
    return _section(TableSection("Skipped", note, ("file", "reason"), skipped[:SKIPPED]))


def _tile(what: str, value: str) -> str:
    return f'<div class="tile {what}"><b>{value}</b><span>{escape(what)}</span></div>'


def legend(*kinds: str) -> str:
    """What the colours of a chart mean."""
    words = {"online": "learning"}
    return "".join(f'<span class="key"><i class="{kind}"></i>{words.get(kind, kind)}</span>' for kind in kinds)


def _is_number(cell: str) -> bool:
    return cell.strip("%±+- ").replace(",", "").replace(".", "", 1).isdigit()
