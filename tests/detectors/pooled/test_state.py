from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from helpers.pooled_reference import is_update
from helpers.streams import cone, space, two_clouds
from unseen import Session, checkpoint
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled import PooledState
from unseen.detectors.pooled.constants import POOLED
from unseen.detectors.pooled.state import Digests, LearnedImages
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
    assert int(state._replace(seen=torch.tensor(100_096)).until_update) == POOLED.interval


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
    assert all(torch.equal(kept[name], part) for name, part in flatten(state).items())


def test_the_size_of_the_state_does_not_grow_with_the_stream():
    labels = cone()
    detector, (z, _) = PooledEvidence(labels), two_clouds(labels, 900)
    shapes = [{name: part.shape for name, part in flatten(after(detector, z[:n])).items()} for n in (0, 10, 900)]
    assert shapes[0] == shapes[1] == shapes[2]


def images(count, seed=0, dim=16):
    z = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    return z / z.norm(dim=1, keepdim=True)


def images_with_slots_of_their_own(count):
    z = images(2 * count)
    slot = Digests.of(z).slot.tolist()
    return z[[row for row, one in enumerate(slot) if slot.count(one) == 1][:count]]


@pytest.fixture
def detector():
    return PooledEvidence(space(5, 40, 16))


def differing(first: PooledState, second: PooledState) -> list[str]:
    """The learned parts that two states do not share."""
    names = [name for name in flatten(first) if name.startswith(("sums", "learned"))]
    return [name for name in names if not torch.equal(flatten(first)[name], flatten(second)[name])]


def test_digest_is_the_formula_in_integers_modulo_two_to_the_64():
    z = images(3, dim=POOLED.digest_features + 8)
    for row, slot, tag in zip(z, *Digests.of(z), strict=True):
        golden, mixed, drawn = 0x9E3779B97F4A7C15, 0, random.Random(0)
        for value in row[: POOLED.digest_features].double().tolist():
            mixed += round(value / POOLED.step) * (drawn.getrandbits(64) | 1)
        mixed = (mixed + 2**63) % 2**64 - 2**63
        mixed = ((mixed ^ (mixed >> 29)) * golden + 2**63) % 2**64 - 2**63
        assert (int(slot), int(tag)) == ((mixed >> 20) % POOLED.slots, (mixed >> 37) % 2**26 + 1)


def test_other_images_have_other_digests_and_rounding_errors_change_none():
    z = images(20_000)
    found = Digests.of(z)
    assert torch.stack([found.slot, found.tag.long()]).unique(dim=1).shape[1] == len(z)
    assert found.slot.bincount(minlength=POOLED.slots).max() < 8  # even: 0.3 images a slot
    nudged = Digests.of(z * (1 + 1e-7))
    assert (nudged.tag == found.tag).double().mean() > 0.99


def test_repeats_are_found_in_the_memory_and_within_a_batch():
    z = images(8)
    memory = LearnedImages.none().with_images(Digests.of(z[:3]))
    asked = Digests.of(z[[4, 1, 5, 4, 6]])
    assert memory.are_new(asked).tolist() == [True, False, True, False, True]


def test_a_repeated_stream_teaches_once_and_is_judged_twice(detector):
    z = images_with_slots_of_their_own(512)
    _, once = detector.observe(detector.start(), z)
    outputs, twice = detector.observe(once, z)
    assert len(outputs.score) == len(z)
    once, twice = once.updated(detector.labels), twice.updated(detector.labels)
    assert int(twice.seen) == 2 * len(z)
    assert not differing(once, twice)


def test_one_by_one_teaches_the_same(detector):
    z = images_with_slots_of_their_own(300)[torch.cat([torch.arange(300), torch.arange(100), torch.arange(200)])]
    _, whole = detector.observe(detector.start(), z)
    state = detector.start()
    for row in z:
        _, state = detector.observe(state, row[None])
    whole, state = whole.updated(detector.labels), state.updated(detector.labels)
    assert torch.equal(whole.learned.tags, state.learned.tags)
    torch.testing.assert_close(whole.sums.sides.weight, state.sums.sides.weight, rtol=1e-4, atol=1e-4)
    assert float(whole.sums.sides.weight.sum()) == pytest.approx(300)


def test_a_slot_keeps_the_later_image():
    z = images(40_000)
    memory = LearnedImages.none()
    for part in z.split(256):
        memory = memory.with_images(Digests.of(part))
    assert memory.are_new(Digests.of(z[-256:])).double().mean() < 0.02  # two of one batch may share a slot
    assert (
        0.1 < memory.are_new(Digests.of(z[:20_000])).double().mean() < 0.5
    )  # another may have the place of an earlier one
