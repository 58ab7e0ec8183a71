"""An image that comes again is judged like any other and learned once."""

import random

import pytest
import torch

from helpers.streams import space
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.repeats import FEATURES, SLOTS, STEP, Digests, LearnedImages, digests, new_images
from unseen.detectors.pooled.state import PooledState
from unseen.detectors.state import flatten


def images(count, seed=0, dim=16):
    z = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    return z / z.norm(dim=1, keepdim=True)


def images_with_slots_of_their_own(count):
    z = images(2 * count)
    slot = digests(z).slot.tolist()
    return z[[row for row, one in enumerate(slot) if slot.count(one) == 1][:count]]


@pytest.fixture
def detector():
    return PooledEvidence(space(5, 40, 16))


def differing(first: PooledState, second: PooledState) -> list[str]:
    """The learned parts that two states do not share."""
    names = [name for name in flatten(first) if name.startswith(("sums", "learned"))]
    return [name for name in names if not torch.equal(flatten(first)[name], flatten(second)[name])]


def test_digest_is_the_formula_in_integers_modulo_two_to_the_64():
    z = images(3, dim=FEATURES + 8)
    for row, slot, tag in zip(z, *digests(z), strict=True):
        golden, mixed, drawn = 0x9E3779B97F4A7C15, 0, random.Random(0)
        for value in row[:FEATURES].double().tolist():
            mixed += round(value / STEP) * (drawn.getrandbits(64) | 1)
        mixed = (mixed + 2**63) % 2**64 - 2**63
        mixed = ((mixed ^ (mixed >> 29)) * golden + 2**63) % 2**64 - 2**63
        assert (int(slot), int(tag)) == ((mixed >> 20) % SLOTS, (mixed >> 37) % 2**26 + 1)


def test_other_images_have_other_digests_and_rounding_errors_change_none():
    z = images(20_000)
    found = digests(z)
    assert torch.stack([found.slot, found.tag.long()]).unique(dim=1).shape[1] == len(z)
    assert found.slot.bincount(minlength=SLOTS).max() < 8  # even: 0.3 images a slot
    nudged = digests(z * (1 + 1e-7))
    assert (nudged.tag == found.tag).double().mean() > 0.99


def test_repeats_are_found_in_the_memory_and_within_a_batch():
    z = images(8)
    memory = LearnedImages.none().with_images(digests(z[:3]))
    asked = digests(z[[4, 1, 5, 4, 6]])
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
        memory = memory.with_images(digests(part))
    assert memory.are_new(digests(z[-256:])).double().mean() < 0.02  # two of one batch may share a slot
    assert (
        0.1 < memory.are_new(digests(z[:20_000])).double().mean() < 0.5
    )  # another may have the place of an earlier one


def test_new_images_of_many_updates_are_those_of_one_update_after_another():
    generator = torch.Generator().manual_seed(0)
    slot, tag = torch.randint(7, (400,), generator=generator), torch.randint(1, 4, (400,), generator=generator).int()
    found, sizes = Digests(slot, tag), [1, 2, 40, 100, 57]
    index = torch.stack([torch.randperm(400, generator=generator)[:200] for _ in range(3)])
    memories = [LearnedImages(torch.randint(0, 4, (SLOTS,), generator=generator).int()) for _ in index]
    is_new, after = new_images(torch.stack([memory.tags for memory in memories]), found, index, sizes)
    for order, memory, new, tags in zip(index, memories, is_new, after, strict=True):
        for rows, expected in zip(order.split(sizes), new.split(sizes), strict=True):
            part = Digests(slot[rows], tag[rows])
            assert memory.are_new(part).tolist() == expected.tolist()
            memory = memory.with_images(part)
        assert torch.equal(memory.tags, tags)
