"""Edits of a state file: one command at a time, written whole or not at all, and undone.

In the folder `state.edits` lies what an edit needs to be undone: the state as it was before (`0003.safetensors`), and
label spaces by fingerprint. A state says which label space it needs: a crash between two files loses nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from unseen import checkpoint
from unseen.checkpoint import edits_folder, kept_space_path
from unseen.discover.edit import Edited, last_edit
from unseen.discover.edit import undo as undone
from unseen.errors import StateError
from unseen.labels import LabelSpace
from unseen.session import Session
from unseen.storage.files import check_kind, claimed_metadata, locked, replacing

KEPT = 8  # edits that can be undone


def apply(state: Path, edit: Callable[[Session], Edited]) -> Edited:
    """Change a state by `edit`, alone; what there was before is kept, so that it can be undone."""
    check_state(state)
    with locked(state):
        before = Session.load(state)
        done = edit(before)
        number, folder = int(done.record["edit"]), edits_folder(state)
        folder.mkdir(exist_ok=True)
        with replacing(folder / f"{number:04d}.safetensors") as temporary:
            shutil.copyfile(state, temporary)
        _keep_space(state, before.detector.labels)
        _write(state, done.session)
        _forget_old(state, number)
    return done


def undo(state: Path) -> Edited:
    """Take back the last edit that has not been undone: exactly, or, if the stream has gone on, by its names."""
    check_state(state)
    with locked(state):
        now = Session.load(state)
        saved, before = edits_folder(state) / f"{int(last_edit(now)['edit']):04d}.safetensors", None
        if saved.exists():  # else it is no longer kept
            labels = LabelSpace.load(kept_space_path(state, checkpoint.load(saved).identity["labels"]))
            before = Session.load(saved, labels)
        done = undone(now, before)
        _write(state, done.session)
    return done


def check_state(state: Path) -> None:
    """Refuse a path without a state."""
    if not state.exists():
        raise StateError(f"expected a state, got no file at {state}; make one with: unseen detect --state {state}")
    check_kind(state, kind=checkpoint.KIND)


def _forget_old(state: Path, number: int) -> None:
    """Remove the states of before the latest `KEPT` edits, and label spaces that no state needs any more."""
    saved = {int(path.stem): path for path in edits_folder(state).glob("*.safetensors") if path.stem.isdecimal()}
    for one, path in saved.items():
        if one <= number - KEPT:
            path.unlink()
    kept = [state, *(path for one, path in saved.items() if one > number - KEPT)]
    needed = {kept_space_path(state, json.loads(claimed_metadata(path)["header"])["labels"]) for path in kept}
    for path in edits_folder(state).glob("*.space.safetensors"):
        if path not in needed:
            path.unlink()


def _write(state: Path, session: Session) -> None:
    _keep_space(state, session.detector.labels)  # before the state needs it
    session.save(state)


def _keep_space(state: Path, labels: LabelSpace) -> None:
    edits_folder(state).mkdir(exist_ok=True)
    if not (path := kept_space_path(state, labels.fingerprint)).exists():
        labels.save(path)
