"""The page about groups of unknown images: exemplars and suggested names, to look at, to sort and to correct.

Below the groups is a table of every kept image, known ones too, for the word of a person on any of them.
"""

from collections.abc import Mapping
from pathlib import Path

from unseen.discover import Group, Grouping, explain
from unseen.discover.review import reviewed
from unseen.report import render
from unseen.session import Session
from unseen.storage.files import replacing

NAMES = 1000  # that the fields suggest


def write(
    path: str | Path,
    found: Grouping,
    *,
    title: str,
    thumbnails: Mapping[str, bytes] | None = None,
    state: str = "STATE",
) -> None:
    """Write the page, whole or not at all; `thumbnails` are JPEGs by key, `state` is the file as commands name it."""
    session = found.session
    text = render(
        "groups.html",
        title=title,
        found=found,
        reasons=[_reasons(session, one) for one in found.groups],
        thumbnails=thumbnails or {},
        state=state,
        threshold=session.threshold,
        rows=[(*row, row.label) for row in reviewed(session)],
        names=session.detector.labels.names[:NAMES],
    )
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _reasons(session: Session, one: Group) -> str:
    """Why the most central image of a group is unknown."""
    images = session.reservoir.images
    z = images.features[images.names().index(one.exemplars[0])]
    return "\n".join(explain(session, z, key=one.exemplars[0]).lines())
