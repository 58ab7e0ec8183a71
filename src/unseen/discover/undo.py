"""Take back the last edit of a session: exactly where nothing was observed since, else by its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unseen.discover.relabel import Edited, move_to_space, record_edit
from unseen.errors import StateError
from unseen.session import Session

RELABELS = ("promote", "rename", "retire")  # edits that change the label space


def last_edit(session: Session) -> Mapping[str, Any]:
    """The record of the last edit that has not been undone."""
    undone = {one.get("undone") for one in session.reservoir.journal}
    open_edits = [one for one in session.reservoir.journal if one["verb"] != "undo" and one["edit"] not in undone]
    if not open_edits:
        raise StateError("expected an edit to undo, got none; promote, rename, retire, dismiss and correct are edits")
    return open_edits[-1]


def undo(session: Session, before: Session | None) -> Edited:
    """Take back the last edit; `before` is the session as it was before it, where it changed the label space."""
    last = last_edit(session)
    is_exact, back = True, session
    if last["verb"] in RELABELS:
        if before is None:
            raise StateError(f"expected an edit whose state is kept, got edit {last['edit']}; only the latest are")
        is_exact = int(session.snapshot.tally.seen) == last["seen"] and session.rule == before.rule
        back = before if is_exact else _by_names(session, before, last)
    now, kept = session.reservoir, back.reservoir.with_recent()
    shown = (last["group"],) if last["verb"] == "dismiss" else ()
    dismissed = tuple(number for number in now.dismissed if number not in shown)
    next_group = max(now.next_group, kept.next_group)
    reservoir = replace(kept, journal=now.journal, dismissed=dismissed, next_group=next_group)
    record = {"verb": "undo", "undone": last["edit"], "of": last["verb"], "exact": is_exact}
    return record_edit(back.at(back.snapshot, reservoir=reservoir), record)


def _by_names(session: Session, before: Session, last: Mapping[str, Any]) -> Session:
    """The session over the names of before, with what it has learned since."""
    names = {last["new"]: last["name"]} if last["verb"] == "rename" else {}
    return move_to_space(session, before.detector.labels, new_names=names).session
