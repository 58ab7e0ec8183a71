from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.pooled_reference import is_update
from helpers.streams import cone, space, two_clouds
from unseen import checkpoint
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


def images(count, seed=0, dim=16):
    z = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    return z / z.norm(dim=1, keepdim=True)


def test_other_images_have_other_digests_and_rounding_errors_change_none():
    z = images(20_000)
    found = Digests.of(z)
    assert torch.stack([found.slot, found.tag.long()]).unique(dim=1).shape[1] == len(z)
    assert found.slot.bincount(minlength=POOLED.slots).max() < 8  # even: 0.3 images a slot
    nudged = Digests.of(z * (1 + 1e-7))
    assert (nudged.tag == found.tag).double().mean() > 0.99
    fixed = Digests.of(torch.ones(1, 16) / 4)
    assert (int(fixed.slot), int(fixed.tag)) == (29722, 52715612)  # states that were saved have learned by these


def test_repeats_are_found_in_the_memory_and_within_a_batch():
    z = images(8)
    memory = LearnedImages.none().with_images(Digests.of(z[:3]))
    asked = Digests.of(z[[4, 1, 5, 4, 6]])
    assert memory.are_new(asked).tolist() == [True, False, True, False, True]


def test_a_repeated_stream_teaches_once_and_is_judged_twice():
    detector, z = PooledEvidence(space(5, 40, 16)), images(1024)
    slot = Digests.of(z).slot
    z = z[(slot[:, None] == slot).sum(1) == 1][:512]  # none takes the place of another in the memory
    _, once = detector.observe(detector.start(), z)
    outputs, twice = detector.observe(once, z)
    assert len(outputs.score) == len(z)
    once, twice = (state.updated(detector.labels) for state in (once, twice))
    assert int(twice.seen) == 2 * len(z)
    for name, part in flatten(once).items():
        assert not name.startswith(("sums", "learned")) or torch.equal(part, flatten(twice)[name]), name


def test_a_slot_keeps_the_later_image():
    z = images(40_000)
    memory = LearnedImages.none()
    for part in z.split(256):
        memory = memory.with_images(Digests.of(part))
    assert memory.are_new(Digests.of(z[-256:])).double().mean() < 0.02  # two of one batch may share a slot
    assert (
        0.1 < memory.are_new(Digests.of(z[:20_000])).double().mean() < 0.5
    )  # another may have the place of an earlier one
