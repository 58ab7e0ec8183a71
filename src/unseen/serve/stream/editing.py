"""Edits of a running stream: names come, go and are called otherwise; each is one entry of the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from unseen import checkpoint
from unseen.discover import Edited, undo
from unseen.discover.edit import RELABELS, last_edit
from unseen.errors import LabelError, ServiceError, StateError
from unseen.serve.settings import Limits
from unseen.serve.stream.journal import EDIT
from unseen.serve.stream.memory import check_names
from unseen.serve.stream.snapshots import BEFORE
from unseen.serve.stream.stream import Stream
from unseen.session import Session

Change = Callable[[Session], Edited]


def edit_stream(stream: Stream, change: Change, limits: Limits, *, after: int | None = None) -> dict[str, Any]:
    """Change the session of a stream, its label space perhaps, and return the record of it.

    Everything is on disk before readers see it. With `after`, the number of the last edit that the caller knows of, an
    edit that came in between is refused. What the stream as it is does not allow is a conflict, 409.
    """
    with stream._lock:
        stream._refresh()
        try:
            refuse_other_edit(stream.writer, after)
            done = change(stream.writer)
        except (StateError, LabelError) as error:
            raise ServiceError(409, str(error), "edit") from error
        check_names(done.session.detector.labels, limits)
        record = {**done.record, "entry": stream.at.entry + 1, "seq": stream.at.seq}
        if record["verb"] in RELABELS:
            before = stream.snapshots.slot(BEFORE, stream.at.entry + 1).path
            stream.writer.save(before, with_space=False, position=list(stream.at))
        stream.take_over(EDIT, with_record(done.session, record))
        stream.snapshots.forget_before()
    stream.cover_restores()
    return record


def undo_edit(stream: Stream, limits: Limits, *, after: int | None = None) -> dict[str, Any]:
    """Take back the last edit of a stream that has not been undone."""
    return edit_stream(stream, partial(_undone, stream), limits, after=after)


def edit_count(session: Session) -> int:
    """The number of the last edit, 0 before the first."""
    return int(max((one["edit"] for one in session.reservoir.journal), default=0))


def refuse_other_edit(session: Session, after: int | None) -> None:
    """Refuse an edit whose caller does not know of the last one."""
    now = edit_count(session)
    if after is not None and after != now:
        last = session.reservoir.journal[-1] if session.reservoir.journal else {"verb": "reset"}
        what = f"{last['verb']} {last.get('name', last.get('group', ''))}".strip()
        raise StateError(
            f"expected the stream as it was after edit {after}, got edit {now} ({what}): someone else was faster; "
            "look at the groups again"
        )


def with_record(session: Session, record: dict[str, Any]) -> Session:
    """The session with the last record of its journal replaced."""
    journal = (*session.reservoir.journal[:-1], record)
    return session.at(session.snapshot, reservoir=replace(session.reservoir, journal=journal))


def _undone(stream: Stream, session: Session) -> Edited:
    path = stream.snapshots.slot(BEFORE, int(last_edit(session).get("entry", 0))).path
    return undo(session, stream.resumed(checkpoint.load(path)) if path.exists() else None)
