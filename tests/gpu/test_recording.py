"""Work is recorded as a CUDA graph, and what it changed while it was tried out is as it was; here without a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from unseen.gpu import recording


@pytest.fixture
def stream(monkeypatch):
    """Stand in for the calls of CUDA: work is done where it is called, and a graph replays nothing."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": nullcontext,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return stream


@pytest.mark.usefixtures("stream")
def test_states_are_restored_after_each_run_before_a_recording(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    total, starts = torch.zeros(2), []

    def work():
        starts.append(total.tolist())
        total.add_(1)

    recorded = recording.record(work, [total])
    assert isinstance(recorded, recording.Recording)
    assert starts == [[0, 0]] * (recording.WARMUPS + 1)  # the last is the recording itself, which runs nothing on a GPU


@pytest.mark.usefixtures("stream")
def test_work_that_cannot_be_recorded_runs_unrecorded_with_a_warning(monkeypatch):
    def fails(graph):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch.cuda, "graph", fails)

    def work() -> None:
        pass

    with pytest.warns(UserWarning, match="expected a CUDA graph, got out of memory"):
        assert recording.record(work, []) is work
