"""One stream as one self-contained HTML file: what was accepted and rejected, where the line ran, what was learned."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.labels.nearest import nearest_negatives
from unseen.report import charts
from unseen.session import Session
from unseen.storage.files import replacing
from unseen.verdicts import Verdicts

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SIDE = 112  # pixels of a thumbnail
SHOWN = 36  # thumbnails at either end of either side
NAMES = 60  # rows of the label space
SKIPPED = 200
STYLE = Path(__file__).with_name("stream.css")


class Thumbnail(NamedTuple):
    """One image as the report shows it."""

    margin: float
    key: str
    name: str
    jpeg: bytes | None


@dataclass
class Gallery:
    """The images of one side that scored highest and lowest: a bounded number of them, however long the stream."""

    thumbnails: list[Thumbnail] = field(default_factory=list)

    def add(self, thumbnail: Thumbnail) -> None:
        """Keep one more, and now and then forget those in the middle."""
        self.thumbnails.append(thumbnail)
        if len(self.thumbnails) > 8 * SHOWN:
            self.thumbnails = [*self.highest(SHOWN), *self.lowest(SHOWN)]

    def highest(self, count: int) -> list[Thumbnail]:
        """Return the highest scores, highest first."""
        return sorted(self.thumbnails, key=lambda one: -one.margin)[:count]

    def lowest(self, count: int) -> list[Thumbnail]:
        """Return the lowest scores, highest first."""
        return sorted(self.thumbnails, key=lambda one: -one.margin)[-count:]


class Columns(NamedTuple):
    """What was said of each sample, in order of arrival."""

    margin: Float[Tensor, " T"]
    known: Bool[Tensor, " T"]
    threshold: Float[Tensor, " T"]
    label: Int[Tensor, " T"]


@dataclass
class Log:
    """What a run has said so far: numbers of every sample, pictures of a few."""

    accepted: Gallery = field(default_factory=Gallery)
    rejected: Gallery = field(default_factory=Gallery)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Columns] = field(default_factory=list)

    def add(self, keys: Sequence[str], verdicts: Verdicts, jpegs: Iterable[bytes | None]) -> None:
        """Keep what was said of consecutive samples."""
        columns = Columns(verdicts.margin, verdicts.known, verdicts.threshold, verdicts.label)
        self.parts.append(Columns(*(column.cpu() for column in columns)))
        for key, verdict, margin, jpeg in zip(keys, verdicts, verdicts.margin.tolist(), jpegs, strict=True):
            side = self.accepted if verdict.known else self.rejected
            side.add(Thumbnail(margin, key, verdict.name or "unknown", jpeg))

    @property
    def columns(self) -> Columns:
        """Return the numbers of the whole run."""
        return Columns(*(torch.cat(column) for column in zip(*self.parts, strict=True)))


class Table(NamedTuple):
    """A further section of the page."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chart: str = ""


def thumbnail(picture: Picture) -> bytes:
    """Return a small JPEG of a picture."""
    small = picture.copy()
    small.thumbnail((SIDE * 2, SIDE * 2))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=72)
    return buffer.getvalue()


def write(path: str | Path, log: Log, session: Session, *, title: str, tables: Sequence[Table] = ()) -> None:
    """Write the page, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(log, session, title=title, tables=tables), encoding="utf-8")


def page(log: Log, session: Session, *, title: str, tables: Sequence[Table] = ()) -> str:
    """Return one HTML page that needs nothing beside it."""
    sections = [
        f"<h1>{escape(title)}</h1><p>{escape(about(session))}</p>",
        _stream(log, session) if log.parts else "<p>No image could be read.</p>",
        *map(_table, tables),
        _galleries(log) if log.parts else "",
        _table(label_table(session.detector.labels, log)),
        _skipped(log.skipped),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = STYLE.read_text(encoding="utf-8")
    body = "".join(sections)
    return f'<!doctype html><html lang="en"><head>{head}<style>{style}</style></head><body>{body}</body></html>'


def about(session: Session) -> str:
    """Return in one line what judged the images."""
    space = session.detector.labels
    mined = ", ".join(
        part
        for part in (
            space.manifest.get("corpus", ""),
            f"{space.manifest['miner']} rule" if "miner" in space.manifest else "",
            f"fingerprint {space.fingerprint[:8]}",
        )
        if part
    )
    return (
        f"encoder {space.encoder or 'unnamed'} · {len(space.names):,} names + {len(space.negatives):,} negatives "
        f"({mined}) · detector {session.detector.name}"
    )


def label_table(space: LabelSpace, log: Log) -> Table:
    """Return each name with how often it was called and the negatives it is most easily taken for."""
    called = [0] * len(space.names)
    if log.parts:
        columns = log.columns
        called = torch.bincount(columns.label[columns.known], minlength=len(space.names)).tolist()
    near = nearest_negatives(space, 4)
    order = sorted(range(len(space.names)), key=lambda i: -called[i])[:NAMES]
    rows = []
    for i in order:
        pairs = near[space.names[i]]
        rows.append((space.names[i], f"{called[i]:,}", ", ".join(f"{p.negative} {p.cosine:.2f}" for p in pairs)))
    more = f" The {NAMES} most called of {len(space.names):,}." if len(space.names) > NAMES else ""
    note = f"Known names, how often each was called, and the negatives nearest to it in text space.{more}"
    return Table("Label space", note, ("name", "called", "nearest negatives"), rows)


def _stream(log: Log, session: Session) -> str:
    columns, tally = log.columns, session.snapshot.tally
    known = int(columns.known.sum())
    tiles = {
        "known": f"{known:,}",
        "unknown": f"{len(columns.known) - known:,}",
        "skipped": f"{len(log.skipped):,}",
        "ever learned from": f"{int(tally.taught_known + tally.taught_unknown):,}",
        f"threshold, {session.rule.name}": f"{session.threshold:.2f}",
    }
    parts = [
        f'<div class="tiles">{"".join(_tile(what, value) for what, value in tiles.items())}</div>',
        "<h2>Scores</h2><p>Log-odds above even: at the line or right of it an image is called known.</p>",
        keys("known", "unknown", "cut"),
        charts.histogram(columns.margin, columns.known, session.threshold),
        "<h2>Over time</h2><p>Every image in order of arrival, and the line as each of them met it.</p>",
        charts.track(columns.margin, columns.known, columns.threshold),
    ]
    return "".join(parts)


def _galleries(log: Log) -> str:
    known = int(log.columns.known.sum())
    unknown = len(log.columns.known) - known
    accepted = _gallery("Accepted", "Called by one of your names", "known", log.accepted, known)
    return accepted + _gallery("Rejected", "None of your names", "unknown", log.rejected, unknown)


def _gallery(title: str, note: str, kind: str, gallery: Gallery, count: int) -> str:
    ends, more = [gallery.highest(count)], ""
    if count > 2 * SHOWN:
        ends, more = [gallery.highest(SHOWN), gallery.lowest(SHOWN)], f" Of {count:,}, the {SHOWN} at either end."
    figures = "<hr>".join("".join(_figure(kind, one) for one in end) for end in ends)
    return f'<h2>{title}</h2><p>{note}, highest score first.{more}</p><div class="pictures">{figures}</div>'


def _figure(kind: str, one: Thumbnail) -> str:
    picture = "<div></div>"
    if one.jpeg:
        picture = f'<img alt="" loading="lazy" src="data:image/jpeg;base64,{base64.b64encode(one.jpeg).decode()}">'
    caption = f"<b>{escape(one.name)}</b><span>{one.margin:+.2f}</span><span>{escape(Path(one.key).name)}</span>"
    return f'<figure class="{kind}" title="{escape(one.key)}">{picture}<figcaption>{caption}</figcaption></figure>'


def _table(table: Table) -> str:
    number = [all(_is_number(row[i]) for row in table.rows) for i in range(len(table.head))]
    marks = [' class="number"' if is_number else "" for is_number in number]
    head = "".join(f"<th{mark}>{escape(cell)}</th>" for mark, cell in zip(marks, table.head, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    body = f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    return f"<h2>{escape(table.title)}</h2><p>{escape(table.note)}</p>{table.chart}{body}"


def _skipped(skipped: Sequence[tuple[str, str]]) -> str:
    if not skipped:
        return ""
    more = f" The first {SKIPPED} of {len(skipped):,}." if len(skipped) > SKIPPED else ""
    note = f"These files could not be read, so nothing was said of them and nothing learned.{more}"
    return _table(Table("Skipped", note, ("file", "reason"), skipped[:SKIPPED]))


def _tile(what: str, value: str) -> str:
    return f'<div class="tile {what}"><b>{value}</b><span>{escape(what)}</span></div>'


def keys(*kinds: str) -> str:
    """Return what the colours of a chart mean."""
    words = {"cut": "line", "online": "learning", "frozen": "frozen"}
    return "".join(f'<span class="key"><i class="{kind}"></i>{words.get(kind, kind)}</span>' for kind in kinds)


def _is_number(cell: str) -> bool:
    return cell.strip("%±+- ").replace(",", "").replace(".", "", 1).isdigit()
