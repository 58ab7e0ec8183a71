"""What a stream takes is known before it is made, bounded for an owner, and given back."""

from __future__ import annotations

import resource

import pytest
import torch

from helpers.methods import ALL
from helpers.service import (
    LABELS,
    DataFolder,
    Limits,
    Server,
    Settings,
    StreamConfig,
    StreamStore,
    sample_batch,
    session_bytes,
    state_bytes,
)
from helpers.streams import space, stream
from unseen import detectors
from unseen.errors import ServiceError

WHOLE = [name for name in ALL if not detectors.find(name).parts]
Z = stream(LABELS, 20)


@pytest.mark.parametrize("detector", WHOLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_size_of_a_state_is_known_before_it_is_made(detector, dtype):
    labels = space(23, 117, 48, dtype=dtype)
    config = StreamConfig("", "", "*", detector)
    session = config.spec(labels).build()
    session.observe(stream(labels, 5))
    assert state_bytes(config, labels) == pytest.approx(session_bytes(session), rel=0.02)


def test_settings_that_become_memory_are_refused_before_it_is_taken(tmp_path):
    labels = space(1000, 2000, 512, dtype=torch.float32)
    limits = Limits(memory_each=100 << 20)
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path, limits=limits))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ServiceError, match="at most 104,857,600 bytes") as caught:
        streams.create(labels, StreamConfig("", "", "a", "adaneg", {"slots": 400}))
    assert caught.value.status == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    assert not streams.entries
    streams.close()


def test_the_streams_of_an_owner_are_bounded_together_and_others_are_not(tmp_path):
    size = state_bytes(StreamConfig("", "", "a", "online"), LABELS)
    limits = Limits(memory_each=2 * size + size // 2, memory=3 * size + size // 2)
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path, limits=limits))
    for owner in ("a", "a", "b"):
        streams.create(LABELS, StreamConfig("", "", owner, "online"))
    with pytest.raises(ServiceError, match="your streams"):
        streams.create(LABELS, StreamConfig("", "", "a", "online"))
    with pytest.raises(ServiceError, match="all streams"):
        streams.create(LABELS, StreamConfig("", "", "b", "online"))
    streams.close()


def test_a_label_space_of_too_many_names_is_refused_however_it_comes(tmp_path):
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path, limits=Limits(names=5)))
    with pytest.raises(ServiceError, match="at most 5 names, got 6") as caught:
        streams.create(LABELS, StreamConfig("", "", "a", "online"))
    assert caught.value.status == 413
    streams.close()


def test_restores_leave_few_files(tmp_path):
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path))
    opened = streams.create(LABELS, StreamConfig("", "", "a", "online")).opened
    number = opened.snapshot().entry
    for _ in range(12):
        opened.observe([sample_batch(LABELS, Z[:2])])
        opened.restore(number)
    assert len(opened.snapshots.all("restored")) <= 4
    streams.close()
    streams = StreamStore(DataFolder(tmp_path), Settings(tmp_path))
    streams.open_all()
    assert next(iter(streams.entries.values())).opened.at.seq == 24
    streams.close()


def test_a_deleted_stream_leaves_the_metrics_and_its_answer_states_its_memory(tmp_path):
    LABELS.save(tmp_path / "space")
    with Server(tmp_path / "data") as server:
        remote = server.client.create(tmp_path / "space", detector="online")
        remote.observe(Z)
        assert remote.info()["memory_bytes"] > 1000
        assert remote.id in server.client.http.get("/metrics").text
        remote.delete()
        assert remote.id not in server.client.http.get("/metrics").text
