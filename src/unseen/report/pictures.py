"""Images as the report of a stream shows them: a gallery of those at either end, and pages with all of them."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

from unseen.storage.files import replacing
from unseen.verdicts import Verdict

SHOWN = 36  # thumbnails at either end of either gallery
PAGE = 240  # images on one page of all images
STYLE = Path(__file__).with_name("stream_page.css")


class Thumbnail(NamedTuple):
    """One image with its verdict and a small JPEG."""

    key: str
    verdict: Verdict
    jpeg: bytes | None


@dataclass
class Gallery:
    """The images of one verdict with the highest and the lowest margins: a bounded number, however long the stream."""

    thumbnails: list[Thumbnail] = field(default_factory=list)

    def add(self, thumbnail: Thumbnail) -> None:
        """Add an image; drop those in the middle when there are too many."""
        self.thumbnails.append(thumbnail)
        if len(self.thumbnails) > 8 * SHOWN:
            self.thumbnails = [*self.highest(SHOWN), *self.lowest(SHOWN)]

    def highest(self, count: int) -> list[Thumbnail]:
        """The images with the highest margins, highest first."""
        return sorted(self.thumbnails, key=lambda one: -one.verdict.margin)[:count]

    def lowest(self, count: int) -> list[Thumbnail]:
        """The images with the lowest margins, highest first."""
        return sorted(self.thumbnails, key=lambda one: -one.verdict.margin)[-count:]

    def section(self, title: str, note: str, count: int) -> str:
        """The gallery as HTML; `count` images had this verdict."""
        ends, more = [self.highest(count)], ""
        if count > PAGE:
            ends, more = [self.highest(SHOWN), self.lowest(SHOWN)], f" The first and the last {SHOWN} of {count:,}."
        figures = "<hr>".join("".join(map(figure, end)) for end in ends)
        return f'<h2>{title}</h2><p>{note}, highest margin first.{more}</p><div class="pictures">{figures}</div>'


@dataclass
class ImagePages:
    """Every image of a stream in order of arrival, as files beside a report; a page is written when it is full."""

    folder: Path
    waiting: list[Thumbnail] = field(default_factory=list)
    written: int = 0

    @classmethod
    def beside(cls, report: Path) -> "ImagePages":
        """The pages of a report, `report.pages/` for `report.html`; those of an earlier one are removed."""
        folder = report.with_suffix(".pages")
        for page in folder.glob("[0-9]*.html"):
            page.unlink()
        return cls(folder)

    def add(self, thumbnail: Thumbnail) -> None:
        """Add the next image."""
        if len(self.waiting) == PAGE:
            self._write([self.written - 1, self.written + 1])
        self.waiting.append(thumbnail)

    def close(self) -> None:
        """Write what waits; nothing where a single page would hold all images."""
        if self.waiting and self.written:
            self._write([self.written - 1])

    def section(self) -> str:
        """Links to all pages, as HTML."""
        if not self.written:
            return ""
        note = f"In order of arrival, {PAGE} a page, in the folder {self.folder.name} beside this file."
        links = _links(range(self.written), f"{self.folder.name}/")
        return f"<h2>All images</h2><p>{escape(note)}</p><nav>{links}</nav>"

    def _write(self, neighbours: Iterable[int]) -> None:
        first, number = self.written * PAGE, self.written
        links = _links([page for page in neighbours if page >= 0], "")
        title = f"Images {first + 1:,} to {first + len(self.waiting):,}"
        body = f'<h1>{title}</h1><nav>{links}</nav><div class="pictures">{"".join(map(figure, self.waiting))}</div>'
        with replacing(self.folder / f"{number + 1}.html") as temporary:
            temporary.write_text(document(title, body), encoding="utf-8")
        self.waiting, self.written = [], number + 1


def document(title: str, body: str) -> str:
    """One HTML page that needs nothing beside it."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = STYLE.read_text(encoding="utf-8")
    return f'<!doctype html><html lang="en"><head>{head}<style>{style}</style></head><body>{body}</body></html>'


def figure(one: Thumbnail) -> str:
    """An image with its name, verdict and probability, margin and threshold and, at a click, why."""
    verdict, picture = one.verdict, "<div></div>"
    if one.jpeg:
        picture = f'<img alt="" loading="lazy" src="data:image/jpeg;base64,{base64.b64encode(one.jpeg).decode()}">'
    name = escape(verdict.nearest) if verdict.known else f"near {escape(verdict.nearest)}"
    kind = "known" if verdict.known else "unknown"
    margin = f"{verdict.margin:z.2f} {'≥' if verdict.known else '&lt;'} {verdict.threshold:z.2f}"
    only = "only " if verdict.probability < 0.495 else ""  # as on the command line
    lines = (f"{kind}, {only}{100 * verdict.probability:.0f} %", margin, escape(Path(one.key).name))
    caption = f"<b>{name}</b>" + "".join(f"<span>{line}</span>" for line in lines)
    caption += f"<details><summary>why</summary>{escape(verdict.why)}</details>"
    return f'<figure class="{kind}" title="{escape(one.key)}">{picture}<figcaption>{caption}</figcaption></figure>'


def _links(pages: Iterable[int], folder: str) -> str:
    return "".join(f'<a href="{escape(folder)}{page + 1}.html">{page + 1}</a>' for page in pages)
