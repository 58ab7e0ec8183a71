from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.pooled_reference import is_update
from helpers.streams import cone, two_clouds
from unseen import Session, checkpoint
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled import PooledState
from unseen.detectors.pooled.state import INTERVAL, Pending
from unseen.detectors.state import flatten


def after(detector: PooledEvidence, z: Tensor) -> PooledState:
    return detector.observe(detector.start(), z)[1]


def test_the_state_changes_after_each_sample_until_16_then_every_2_until_32_and_at_most_every_256():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 600)
    state, updates = detector.start(), []
    for row in z.split(1):
        before = state.sums.sides.weight
        state = detector.observe(state, row)[1]
        if not torch.equal(before, state.sums.sides.weight):
            updates.append(int(state.seen))
    assert updates == [n for n in range(1, 601) if is_update(n)]
    assert updates[:20] == [*range(1, 17), 18, 20, 22, 24]
    assert int(state._replace(seen=torch.tensor(100_096)).until_update) == INTERVAL


def test_between_two_updates_samples_wait_and_scores_do_not_change():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 600)
    at, later = after(detector, z[:512]), after(detector, z[:570])
    assert int(at.pending.size) == 0
    assert int(later.pending.size) == 58
    torch.testing.assert_close(later.pending.samples.z[:58], z[512:570])
    torch.testing.assert_close(detector.score(later, z).score, detector.score(at, z).score)


def test_updating_takes_in_what_is_pending_once():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 570)
    state = after(detector, z)
    once = state.updated(labels)
    assert float(state.sums.sides.weight.sum()) == pytest.approx(512)
    assert float(once.sums.sides.weight.sum()) == pytest.approx(570)
    assert all(torch.equal(flatten(once)[name], part) for name, part in flatten(once.updated(labels)).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seen", [0, 9, 33, 300])
def test_a_checkpoint_in_the_middle_of_an_interval_goes_on_with_the_same_bits(tmp_path, seen, dtype):
    labels = cone(dtype=dtype)
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 700)
    state = after(detector, z[:seen])
    checkpoint.save(path := tmp_path / "state.safetensors", {"detector": state}, {})
    back = checkpoint.restore_state(detector.start(), checkpoint.load(path).states["detector"])
    assert all(torch.equal(flatten(state)[name], part) for name, part in flatten(back).items())
    (one, end), (two, same) = (detector.observe(each, z[seen:]) for each in (state, back))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert all(torch.equal(flatten(end)[name], part) for name, part in flatten(same).items())


def test_a_session_resumes_in_the_middle_of_an_interval():
    labels = cone()
    z, _ = two_clouds(labels, 700)
    whole, first = Session(labels), Session(labels)
    whole.observe(z[:411])
    first.observe(z[:411])
    second = Session.load(first.to_bytes(), labels)
    assert torch.equal(second.observe(z[411:]).margin, whole.observe(z[411:]).margin)
    assert second.threshold == whole.threshold


def test_a_state_is_not_written_to():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 700)
    state = after(detector, z[:300])
    kept = {name: part.clone() for name, part in flatten(state).items()}
    detector.observe(state, z[300:])
    detector.merge(state, [detector.observe_part(state, part)[1] for part in z[300:].chunk(2)])
    assert all(torch.equal(kept[name], part) for name, part in flatten(state).items())


def test_the_size_of_the_state_does_not_grow_with_the_stream():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 900)
    shapes = [{name: part.shape for name, part in flatten(after(detector, z[:n])).items()} for n in (0, 10, 900)]
    assert shapes[0] == shapes[1] == shapes[2]


def test_merged_parts_make_the_state_of_one_observer():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 1024)
    for first, last in ((512, 576), (512, 561)):  # with and without an update at the end
        start = after(detector, z[:first])
        merged = detector.merge(start, [detector.observe_part(start, part)[1] for part in z[first:last].split(30)])
        torch.testing.assert_close(merged, after(detector, z[:last]), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("known_first", [True, False])
def test_no_sum_of_weights_becomes_negative_where_many_parts_see_the_other_kind(known_first):
    labels = cone()
    detector, (z, is_known) = PooledEvidence(labels), two_clouds(labels, 4000, noise=0.2)
    first, second = (z[is_known], z[~is_known]) if known_first else (z[~is_known], z[is_known])
    start = after(detector, first[:1000])
    merged = detector.merge(start, [detector.observe_part(start, part)[1] for part in second.chunk(8)])
    assert bool((merged.sums.predictions.sides[:, 0] >= 0).all())
    assert bool((merged.sums.predictions.sides[:, 2] >= 0).all())
    assert bool((merged.sums.known.images >= 0).all())
    assert bool(detector.score(merged, z).margin.isfinite().all())


def test_room_for_pending_samples_is_made_where_the_label_space_is():
    """`meta` is a device that every machine has: a tensor made elsewhere cannot be joined with one there."""
    labels: Any = SimpleNamespace(id_anchors=torch.empty(3, 4, device="meta"), dim=4, names="abc", negatives="defgh")
    pending = Pending.none(labels)
    assert {part.device.type for part in (pending.latest, *flatten(pending.samples).values())} == {"meta"}
