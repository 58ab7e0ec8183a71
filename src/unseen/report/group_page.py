"""The page about groups of unknown images: exemplars and suggested names, to look at, to sort and to correct.

Below the groups is a table of every kept image, known ones too, for the word of a person on any of them.
"""

import base64
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

from unseen.discover import Group, Grouping, explain
from unseen.discover.review import reviewed
from unseen.report.pictures import STYLE as STREAM_STYLE
from unseen.session import Session
from unseen.storage.files import replacing

STYLE, SCRIPT = (Path(__file__).with_name(f"group_page.{kind}") for kind in ("css", "js"))


def write(
    path: str | Path,
    found: Grouping,
    *,
    title: str,
    thumbnails: Mapping[str, bytes] | None = None,
    state: str | None = "STATE",
) -> None:
    """Write the page, whole or not at all; `thumbnails` are JPEGs by key.

    `state` is the state file as commands name it, None where images were grouped that nobody has judged.
    """
    with replacing(path) as temporary:
        temporary.write_text(page(found, title=title, thumbnails=thumbnails or {}, state=state), encoding="utf-8")


def page(found: Grouping, *, title: str, thumbnails: Mapping[str, bytes], state: str | None) -> str:
    """One HTML page that needs nothing beside it."""
    names = found.session.detector.labels.names
    articles = [_group(one, _reasons(found.session, one), thumbnails) for one in found.groups]
    counts = f"{len(found.groups)} groups hold {found.grouped:,} of {found.unknown:,} unknown images that are kept."
    body = (
        f"<h1>{escape(title)}</h1><p>{counts} Write what a group shows, or take a suggestion; “Corrections” gives the "
        "commands that promote and dismiss, and a CSV with your word for single images.</p>"
        + _controls()
        + f'<main id="groups" data-state="{escape(state or "STATE")}">{"".join(articles)}</main>'
        + (_review(found.session) if state else "")
        + f'<datalist id="names">{"".join(f"<option>{escape(name)}</option>" for name in names[:1000])}</datalist>'
    )
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = STREAM_STYLE.read_text(encoding="utf-8") + STYLE.read_text(encoding="utf-8")
    script = SCRIPT.read_text(encoding="utf-8")
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{style}</style></head>'
        f"<body>{body}<script>{script}</script></body></html>"
    )


def _review(session: Session) -> str:
    """The table of every kept image, which the script of the page fills."""
    rows = json.dumps([(*row, row.label) for row in reviewed(session)], ensure_ascii=False).replace("<", "\\u003c")
    kinds = "".join(f"<option>{kind}</option>" for kind in ("all", "unknown", "known", "corrected"))
    orders = "".join(f"<option>{order}</option>" for order in ("nearest to the threshold", "newest", "group"))
    heads = "".join(f"<th>{head}</th>" for head in ("image", "verdict", "nearest", "margin", "group", "your word"))
    return (
        '<section id="review"><h2>Review</h2><p>Every image that is kept. Your word is kept apart from the verdict; '
        'nothing is learned from it.</p><form class="controls" onsubmit="return false">'
        '<label>Find <input id="review-find" type="search" placeholder="name, file"></label>'
        f'<label>Show <select id="review-kind">{kinds}</select></label>'
        f'<label>Sort <select id="review-sort">{orders}</select></label><span id="review-count"></span></form>'
        f'<table><thead><tr>{heads}</tr></thead><tbody id="review-rows"></tbody></table></section>'
        f'<script type="application/json" id="kept" data-threshold="{session.threshold}">{rows}</script>'
    )


def _reasons(session: Session, one: Group) -> str:
    """Why the most central image of a group is unknown."""
    images = session.reservoir.images
    called = images.names()
    return "\n".join(explain(session, images.features[called.index(one.exemplars[0])], key=one.exemplars[0]).lines())


def _controls() -> str:
    orders = "".join(f'<option value="{key}">{text}</option>' for key, text in ORDERS.items())
    return (
        '<form class="controls" onsubmit="return false">'
        '<label>Find <input id="find" type="search" placeholder="name, file"></label>'
        f'<label>Sort <select id="sort">{orders}</select></label>'
        '<label><input id="known" type="checkbox"> hide groups that look known</label>'
        '<button id="export" type="button">Corrections</button></form>'
        '<section id="out" hidden><p><a id="csv" download="corrections.csv">corrections.csv</a></p>'
        "<pre></pre></section>"
    )


ORDERS = {"size": "largest first", "last": "latest first", "tightness": "tightest first", "number": "by number"}


def _group(one: Group, reasons: str, thumbnails: Mapping[str, bytes]) -> str:
    chips = "".join(
        f'<button type="button" class="chip" data-word="{escape(word.word)}">{escape(word.word)} '
        f"<small>{100 * word.share:.0f} %</small></button>"
        for word in one.suggestions
    )
    notes = [
        '<b class="growing">growing fast</b>' if one.growing else "",
        f"looks like {escape(one.nearest)}, rejected?" if one.looks_known else f"nearest: {escape(one.nearest)}",
        f"copies folded: {one.size - one.distinct}" if one.distinct < one.size else "",
        f"seen {one.first:,} to {one.last:,}",
        f"tightness {one.tightness:.2f}",
    ]
    why = f"<details><summary>why</summary><pre>{escape(reasons)}</pre></details>" if reasons else ""
    keys = escape(json.dumps(one.keys), quote=True)
    return (
        f'<article tabindex="0" data-number="{one.number}" data-size="{one.size}" data-last="{one.last}" '
        f'data-tightness="{one.tightness}" data-known="{int(one.looks_known)}" data-keys="{keys}">'
        f"<h2>Group {one.number} <small>{one.size:,} images</small></h2><p>{' · '.join(filter(None, notes))}</p>"
        f'<div class="pictures">{"".join(_figure(key, thumbnails.get(key)) for key in one.exemplars)}</div>{why}'
        f'<p class="name"><label>name <input class="word" aria-label="name of group {one.number}"></label> {chips} '
        '<label><input type="checkbox" class="dismiss"> dismiss</label></p></article>'
    )


def _figure(key: str, jpeg: bytes | None) -> str:
    picture = '<div class="none"></div>'
    if jpeg:
        picture = f'<img alt="" loading="lazy" src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'
    field = f'<input list="names" placeholder="correct" aria-label="correct {escape(key)}" data-key="{escape(key)}">'
    caption = f"<figcaption>{escape(Path(key).name)}{field}</figcaption>"
    return f'<figure class="unknown" title="{escape(key)}">{picture}{caption}</figure>'
