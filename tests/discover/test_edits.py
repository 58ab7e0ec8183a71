"""Edits of a state file: whole or not at all, one at a time, and undone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from unseen import Session, checkpoint, demo
from unseen.discover import edits, promote, rename, retire
from unseen.errors import StateError
from unseen.storage.files import locked

WORDS = demo.vocabulary()
SHIP, TRUCK = (WORDS.vectors[WORDS.words.index(word)] for word in ("ship", "truck"))


@pytest.fixture
def state(grouping, tmp_path):
    path = tmp_path / "state.safetensors"
    grouping.session.save(path)
    grouping.session.detector.labels.save(checkpoint.space_path(path))
    return path


def load(state) -> Session:
    return Session.load(state)


def test_a_refused_edit_changes_nothing(state):
    before = state.read_bytes()
    with pytest.raises(StateError):
        edits.apply(state, lambda session: promote(session, 999, "ship", SHIP))
    assert state.read_bytes() == before


def test_undo_brings_back_the_state_exactly_if_nothing_came_since(state, pack):
    before = load(state).score(pack.z[500:])
    edits.apply(state, lambda session: promote(session, 1, "ship", SHIP))
    done = edits.undo(state)
    after = load(state)
    assert done.record["exact"]
    assert torch.equal(after.score(pack.z[500:]).margin, before.margin)
    assert [one["verb"] for one in after.reservoir.journal] == ["promote", "undo"]
    with pytest.raises(StateError, match="expected an edit to undo, got none"):
        edits.undo(state)


def test_undo_keeps_what_was_learned_since(state, pack):
    edits.apply(state, lambda session: promote(session, 1, "ship", SHIP))
    run = load(state)
    run.observe(pack.z[500:], pack.keys[500:])
    run.save(state)
    done = edits.undo(state)
    after = load(state)
    assert not done.record["exact"]
    assert after.detector.labels.names == pack.space.names
    assert after.detector.labels.negatives == pack.space.negatives
    assert int(after.snapshot.tally.seen) == 600
    assert "ship" not in [verdict.name for verdict in after.score(pack.z[500:])]


def test_edits_are_undone_one_after_the_other_and_a_rename_too(state, pack):
    edits.apply(state, lambda session: rename(session, "cat", "kitty"))
    edits.apply(state, lambda session: retire(session, "dog"))
    run = load(state)
    run.observe(pack.z[500:510])
    run.save(state)
    assert edits.undo(state).record["of"] == "retire"
    assert "kitty" in load(state).detector.labels.names
    assert edits.undo(state).record["of"] == "rename"
    assert load(state).detector.labels.names == tuple(pack.space.names)


def test_a_crash_between_the_two_files_leaves_a_state_that_finds_its_label_space(state, monkeypatch):
    saved = checkpoint.space_path(state).read_bytes()
    edits.apply(state, lambda session: promote(session, 1, "ship", SHIP))
    checkpoint.space_path(state).write_bytes(saved)  # as if the machine had stopped before the label space was replaced
    assert load(state).detector.labels.names[-1] == "ship"


def test_two_people_who_promote_at_once_come_one_after_the_other(state):
    entered = threading.Barrier(2)

    def run(number: int, name: str, text: torch.Tensor) -> None:
        entered.wait()
        edits.apply(state, lambda session: promote(session, number, name, text))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (1, 2), ("ship", "truck"), (SHIP, TRUCK)))
    assert set(load(state).detector.labels.names[-2:]) == {"ship", "truck"}
    assert [one["edit"] for one in load(state).reservoir.journal] == [1, 2]


def test_a_state_in_use_is_refused_after_a_while_with_the_process_that_has_it(state):
    with (
        locked(state),
        pytest.raises(StateError, match=r"got one that another process is changing"),
        locked(state, wait=0.1),
    ):
        pass
    with locked(state, wait=0.1):
        pass
    assert [path.name for path in state.parent.iterdir() if path.name.endswith(".lock")] == []


def test_only_the_last_edits_keep_their_states(state, monkeypatch):
    monkeypatch.setattr(edits, "KEPT", 2)
    for number in range(3):
        edits.apply(state, lambda session, n=number: rename(session, session.detector.labels.names[0], f"cat {n}"))
    assert sorted(path.name for path in checkpoint.edits_folder(state).glob("[0-9][0-9][0-9][0-9].safetensors")) == [
        "0002.safetensors",
        "0003.safetensors",
    ]
    spaces = {path.name for path in checkpoint.edits_folder(state).glob("*.space.safetensors")}
    assert len(spaces) == 3  # of the two states that are kept, and of the one of now
    assert edits.undo(state).session.detector.labels.names[0] == "cat 1"
    assert edits.undo(state).session.detector.labels.names[0] == "cat 0"
