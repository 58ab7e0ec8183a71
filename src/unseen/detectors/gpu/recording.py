"""CUDA graphs: work that is recorded once is launched again in a fraction of the time of its kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unseen.detectors.state import map_state
from unseen.triton_import import log_compilation

WARMUPS = 2  # runs before a recording: kernels are compiled in the first


@dataclass(frozen=True)
class Recording:
    """A graph, and the work that it records: that holds the tensors which the graph reads and writes."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        """Run the graph."""
        self.graph.replay()


def record(work: Callable[[], None], changed: Sequence[Any]) -> Callable[[], None]:
    """Return a recorded graph of `work`, or `work` where recording fails; states that it has `changed` are restored."""
    log_compilation()
    kept = [map_state(torch.clone, part) for part in changed]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUPS):
            work()
            for part, before in zip(changed, kept, strict=True):  # a second run would read the samples that follow
                map_state(torch.Tensor.copy_, part, before)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        warnings.warn(f"expected a CUDA graph, got {error}; the detector runs unrecorded", stacklevel=2)
        return work
    return Recording(graph, work)
