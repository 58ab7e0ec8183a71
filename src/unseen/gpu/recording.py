"""CUDA graphs: work that is recorded once is launched again in a fraction of the time of its kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.gpu.triton_import import log_compilation

WARMUPS = 2  # runs before a recording: kernels are compiled in the first


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """What makes a GPU the current one: Triton launches there, and streams are made there, wherever data lie."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@dataclass(frozen=True)
class Recording:
    """A graph, and the work that it records: that holds the tensors which the graph reads and writes."""

    graph: torch.cuda.CUDAGraph
    work: Callable[[], None]

    def __call__(self) -> None:
        """Run the graph."""
        self.graph.replay()


def record(work: Callable[[], None], changed: Sequence[Tensor]) -> Callable[[], None]:
    """A recorded graph of `work`, or `work` where recording fails; what it has `changed` is restored."""
    log_compilation()
    kept = [part.clone() for part in changed]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUPS):
            work()
            for part, before in zip(changed, kept, strict=True):  # a second run would read the samples that follow
                part.copy_(before)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        warnings.warn(f"expected a CUDA graph, got {error}; the detector runs unrecorded", stacklevel=2)
        return work
    return Recording(graph, work)
