"""States of version 0.1 are translated, or refused by name with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from helpers.streams import stream
from unseen import LabelSpace, Session, SessionSpec, checkpoint
from unseen.errors import StateError
from unseen.storage.files import save_tensors

FOLDER = Path(__file__).parent / "data" / "v0.1" / "states"


@pytest.fixture
def old_space() -> LabelSpace:
    return LabelSpace.load(FOLDER / "space.safetensors")


@pytest.mark.parametrize("name", ["mcm", "online"])
def test_a_state_of_version_0_1_goes_on_with_a_new_threshold(name, old_space):
    session = Session.load(FOLDER / f"{name}.safetensors", old_space)
    assert session.detector.name == name
    assert int(session.snapshot.threshold.seen) == 0
    seen = int(session.snapshot.tally.seen)
    assert seen
    session.observe(stream(old_space, 30).to(old_space.id_anchors.dtype))
    assert int(session.snapshot.tally.seen) == seen + 30
    assert Session.load(session.to_bytes(), old_space).threshold == session.threshold


def test_a_state_of_the_detector_default_of_version_0_1_is_refused(old_space):
    with pytest.raises(StateError, match=r"got one of 'default' as unseen 0\.1 wrote it; start a new state"):
        Session.load(FOLDER / "default.safetensors", old_space)


def test_a_state_of_the_detector_pooled_in_its_earlier_layout_is_refused(tmp_path):
    path, header = tmp_path / "state.safetensors", {"version": 3, "unseen": "0.2.0", "detector": "pooled"}
    save_tensors(path, {}, kind="state", header=json.dumps(header))
    with pytest.raises(
        StateError, match=r"got one of 'pooled' .* as unseen 0\.2\.0 wrote it; start a new state, or go on"
    ):
        checkpoint.load(path)


def test_a_state_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "state.safetensors"
    save_tensors(path, {}, kind="state", header=json.dumps({"version": 99}))
    with pytest.raises(StateError, match="expected a state of version 5 or before, got 99; upgrade unseen"):
        checkpoint.load(path)


def test_a_spec_resumes_only_the_states_it_describes(labels):
    spec = SessionSpec(labels, "online", {"rho": 0.2}, "fixed", {"threshold": 1.5})
    session = spec.build()
    session.observe(stream(labels, 40))
    again = spec.resume(session.to_bytes())
    assert again.identity == session.identity == spec.build().identity
    assert again.threshold == 1.5
    assert torch.equal(again.score(stream(labels, 5)).score, session.score(stream(labels, 5)).score)
    assert Session.load(session.to_bytes(), labels).identity == session.identity
    with pytest.raises(StateError, match="expected a state of settings"):
        SessionSpec(labels, "online").resume(session.to_bytes())
