from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors import safe_open

from helpers.streams import space, stream
from unseen import LabelSpace, Session, detectors
from unseen.detectors import MCM, Framework, Online, PooledEvidence
from unseen.errors import StateError
from unseen.storage.files import load_tensors, save_tensors
from unseen.threshold import Adaptive, Fixed


@pytest.fixture
def session(labels: LabelSpace) -> Session:
    return Session(Online(labels), Adaptive(warmup=16, every=8, window=64))


def test_threshold_and_confidence_apply_to_the_margin(labels):
    session = Session(PooledEvidence(labels), Fixed(0.5))
    for verdict in session.observe(stream(labels, 60)):
        assert verdict.known == (verdict.margin >= verdict.threshold == 0.5)
        assert verdict.p_known == pytest.approx(1 / (1 + math.exp(-verdict.margin)))


def test_verdicts_are_a_sequence(session, labels):
    verdicts = session.observe(stream(labels, 20))
    assert len(verdicts) == 20
    assert verdicts[-1] == list(verdicts)[19]
    assert verdicts[2:4] == [verdicts[2], verdicts[3]]
    with pytest.raises(IndexError):
        verdicts[20]


def test_observing_learns_and_scoring_does_not(session, labels):
    z = stream(labels)
    before = session.snapshot
    session.score(z)
    assert session.snapshot is before
    session.observe(z)
    assert int(session.snapshot.tally.seen) == len(z)
    assert int(session.snapshot.tally.taught_known) + int(session.snapshot.tally.taught_unknown) > 0
    assert not torch.equal(session.snapshot.detector.ood_bank, before.detector.ood_bank)
    assert int(before.tally.seen) == 0  # an old snapshot is never written to


@pytest.mark.parametrize("name", ["pooled", "online", "mcm"])  # of all others check_detector says it
def test_a_saved_session_goes_on_where_it_stopped(name, labels, tmp_path):
    z = stream(labels)
    session, whole = (Session(detectors.make(name, labels)) for _ in range(2))
    session.observe(z[:41])  # in the middle of an interval
    session.save(tmp_path / "state.safetensors")
    resumed = Session.load(tmp_path / "state.safetensors", labels)
    expected = whole.observe(z).output.score[41:]
    torch.testing.assert_close(resumed.observe(z[41:]).output.score, expected)
    assert int(resumed.snapshot.tally.seen) == len(z)
    assert resumed.threshold == pytest.approx(whole.threshold)


def test_a_state_from_another_label_space_is_refused(session, tmp_path):
    session.save(tmp_path / "s")
    with pytest.raises(StateError, match="load the label space it was learned with"):
        Session.load(tmp_path / "s", space(known=7))


def test_a_state_of_another_detector_is_refused(session, labels, tmp_path):
    session.save(tmp_path / "s")
    with pytest.raises(StateError, match="expected a state of detector mcm, got one of online"):
        Session.load(tmp_path / "s", labels, detector=MCM(labels))
    with pytest.raises(StateError, match="settings"):
        Session.load(tmp_path / "s", labels, detector=Online(labels, rho=0.2))


def test_a_detector_that_is_not_registered_is_passed_when_loading(labels, tmp_path):
    def uniform(z):
        return torch.full((len(z), len(labels.names)), 1 / len(labels.names))

    mine = Framework(labels, targets=uniform)
    session = Session(mine)
    session.observe(stream(labels))
    session.save(tmp_path / "s")
    again = Session.load(tmp_path / "s", labels, detector=mine)
    assert torch.equal(again.snapshot.detector.bank, session.snapshot.detector.bank)


def test_a_checkpoint_with_other_tensors_is_refused(session, labels, tmp_path):
    path = tmp_path / "s"
    session.save(path)
    tensors, header = load_tensors(path, kind="state")
    tensors["detector.id_bank"] = tensors["detector.id_bank"][:-1].clone()
    save_tensors(path, tensors, kind="state", header=header)
    with pytest.raises(StateError, match="difference in \\['id_bank'\\]"):
        Session.load(path, labels)
    save_tensors(path, {**tensors, "more.x": torch.zeros(1)}, kind="state", header=header)
    with pytest.raises(StateError, match="got \\['more'\\] besides"):
        Session.load(path, labels)


def test_the_state_is_readable_without_unseen(session, tmp_path):
    session.save(tmp_path / "s")
    with safe_open(tmp_path / "s", framework="pt") as file:
        assert json.loads(file.metadata()["header"])["detector"] == "online"
        assert "detector.id_bank" in file.keys()  # noqa: SIM118


def test_a_session_at_a_snapshot_goes_on_from_it_and_leaves_the_first_alone(session, labels):
    session.observe(stream(labels, 30))
    before = session.snapshot
    other = session.at(before)
    other.observe(stream(labels, 20))
    assert session.snapshot is before
    assert int(other.snapshot.tally.seen) == 50


def test_a_state_finds_the_label_space_that_was_saved_beside_it(session, labels, tmp_path):
    session.observe(stream(labels, 20))
    session.save(tmp_path / "day.safetensors")
    again = Session.load(tmp_path / "day.safetensors")
    assert again.detector.labels.fingerprint == labels.fingerprint
    assert int(again.snapshot.tally.seen) == 20
    with pytest.raises(StateError, match="expected a label space for a state in bytes"):
        Session.load(session.to_bytes())
    (tmp_path / "day.space.safetensors").unlink()
    with pytest.raises(StateError, match=r"expected the label space of .*day.safetensors at .*got no file"):
        Session.load(tmp_path / "day.safetensors")
