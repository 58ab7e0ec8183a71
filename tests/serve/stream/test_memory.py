"""What a stream takes is known before it is made, bounded for an owner, and given back."""

from __future__ import annotations

import resource
from dataclasses import replace

import pytest
import torch

from helpers.methods import ALL
from helpers.service import CONFIG, LABELS, Limits, open_store, sample_batch, session_bytes, state_bytes
from helpers.streams import space, stream
from unseen.errors import ServiceError

WHOLE = [name for name, kind in ALL.items() if not kind.parts]
Z = stream(LABELS, 20)


@pytest.mark.parametrize("detector", WHOLE)
def test_the_size_of_a_state_is_known_before_it_is_made(detector):
    for dtype in (torch.float32, torch.float64):
        labels, config = space(23, 117, 48, dtype=dtype), replace(CONFIG, detector=detector)
        session = config.spec(labels).build()
        session.observe(stream(labels, 5))
        assert state_bytes(config, labels) == pytest.approx(session_bytes(session), rel=0.02)


def test_settings_that_become_memory_are_refused_before_it_is_taken(tmp_path):
    labels = space(1000, 2000, 512, dtype=torch.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_store(tmp_path, limits=Limits(memory_each=100 << 20)) as streams:
        with pytest.raises(ServiceError, match="at most 104,857,600 bytes") as caught:
            streams.create(labels, replace(CONFIG, detector="adaneg", settings={"slots": 400}))
        assert caught.value.status == 413
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
        assert not streams.entries


def test_the_streams_of_an_owner_are_bounded_together_and_others_are_not(tmp_path):
    size = state_bytes(CONFIG, LABELS)
    limits = Limits(memory_each=2 * size + size // 2, memory=3 * size + size // 2)
    with open_store(tmp_path, limits=limits) as streams:
        for owner in ("a", "a", "b"):
            streams.create(LABELS, replace(CONFIG, owner=owner))
        for owner, whose in (("a", "your streams"), ("b", "all streams")):
            with pytest.raises(ServiceError, match=whose):
                streams.create(LABELS, replace(CONFIG, owner=owner))


def test_a_label_space_of_too_many_names_and_a_stream_too_many_for_its_owner_are_refused(tmp_path):
    with open_store(tmp_path / "names", limits=Limits(names=5)) as streams:
        with pytest.raises(ServiceError, match="at most 5 names, got 6") as caught:
            streams.create(LABELS, CONFIG)
        assert caught.value.status == 413
    with open_store(tmp_path / "streams", limits=Limits(streams=2)) as streams:
        for owner in "aabb**":  # the streams of tenants do not count as the operator's
            streams.create(LABELS, replace(CONFIG, owner=owner))
        with pytest.raises(ServiceError, match="at most 2 streams"):
            streams.create(LABELS, CONFIG)


def test_restores_leave_few_files(tmp_path):
    with open_store(tmp_path) as streams:
        opened = streams.create(LABELS, CONFIG).opened
        number = opened.snapshot().entry
        for _ in range(12):
            opened.observe([sample_batch(LABELS, Z[:2])])
            opened.restore(number)
        assert len(opened.snapshots.all("restored")) <= 4
    with open_store(tmp_path) as streams:
        assert next(iter(streams.entries.values())).opened.at.seq == 24
