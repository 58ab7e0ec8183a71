"""The images that a session keeps: which, how many, and that they survive a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import torch

from helpers.streams import space, stream
from unseen import Session
from unseen.checkpoint import load, save
from unseen.detectors import MCM
from unseen.threshold import Fixed


def session(keep: int = 16, intake: int = 32) -> Session:
    run = Session(MCM(space(dtype=torch.float32)), Fixed(-0.9), keep=keep)
    return run.at(run.snapshot, reservoir=replace(run.reservoir, intake=intake))


def observed(parts: list[int], keep: int = 16) -> Session:
    run = session(keep)
    z = stream(run.detector.labels, sum(parts), noise=0.4)
    keys = [f"image {i}" for i in range(len(z))]
    for start, count in zip([0, *torch.tensor(parts).cumsum(0).tolist()], parts, strict=False):
        run.observe(z[start : start + count], keys[start : start + count])
    return run


def test_the_division_into_calls_does_not_change_what_is_kept():
    one, many = observed([300]).reservoir.images, observed([1, 7, 92, 33, 167]).reservoir.images
    assert one.keys == many.keys
    assert torch.equal(one.z, many.z)
    assert torch.equal(one.known, many.known)


def test_the_latest_unknown_images_are_kept_and_older_ones_sampled():
    run = observed([300])
    kept, everything = run.reservoir.images, observed([300], keep=10_000).reservoir.images
    unknown = everything.place[~everything.known]
    assert int((~kept.known).sum()) == 16
    assert int(kept.known.sum()) == 2
    mine = kept.place[~kept.known]
    assert torch.equal(mine[-8:], unknown[-8:])
    assert set(mine.tolist()) <= set(unknown.tolist())
    assert int(mine[0]) < int(unknown[len(unknown) // 2])  # the sample reaches back


def test_what_is_kept_is_the_image_with_its_verdict_and_its_key():
    run = session(keep=1000)
    z = stream(run.detector.labels, 40, noise=0.4)
    verdicts = run.observe(z, [f"image {i}" for i in range(40)])
    kept = run.reservoir.images
    assert kept.keys == tuple(f"image {i}" for i in kept.place.tolist())
    assert torch.equal(kept.known, verdicts.known[kept.place])
    assert torch.equal(kept.label, verdicts.label[kept.place])
    torch.testing.assert_close(kept.features, z[kept.place], atol=1e-3, rtol=0)


def test_the_features_of_a_caller_may_change_afterwards():
    run = session()
    z = stream(run.detector.labels, 5).half()
    run.observe(z)
    before = run.reservoir
    z.zero_()
    assert bool((before.images.z.float().norm(dim=1) > 0.9).all())


def test_a_reservoir_survives_a_checkpoint(tmp_path):
    run = observed([50])
    run.reservoir = replace(run.reservoir, next_group=4, dismissed=(2, 3))
    run.save(tmp_path / "state.safetensors")
    again = Session.load(tmp_path / "state.safetensors", run.detector.labels).reservoir
    assert again.images.keys == run.reservoir.images.keys
    assert torch.equal(again.images.z, run.reservoir.images.z)
    assert (again.unknown, again.next_group, again.dismissed) == (16, 4, (2, 3))


def test_a_state_without_a_reservoir_loads_and_says_from_where_on_images_are_kept(tmp_path):
    run = observed([50])
    save(tmp_path / "state.safetensors", run.snapshot._asdict(), run.identity)
    again = Session.load(tmp_path / "state.safetensors", run.detector.labels)
    assert (len(again.reservoir.images), again.reservoir.since) == (0, 50)
    assert "reservoir" not in load(tmp_path / "state.safetensors").states


def test_the_stated_memory_is_that_of_a_full_reservoir():
    run = observed([600])
    tensors = run.reservoir.images.tensors()
    size = sum(x.numel() * x.element_size() for name, x in tensors.items() if not name.startswith("key"))
    assert size <= run.reservoir.byte_limit
    assert session(keep=0).reservoir.byte_limit < run.reservoir.byte_limit
