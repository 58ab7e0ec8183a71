"""Score many streams on Ray: a stream is one task, because what it learns from a sample depends on those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.keyed import Recipe, Scan, Scans, Stream
from unseen.scale.cluster import fetched

AHEAD = 2  # streams sent out per core: enough to keep it busy, not so many that all features lie in the object store


def on(ray: Any, *, ahead: int = AHEAD) -> Scans:
    """Return what scores streams on Ray and yields each scan when it is done.

    A task is pure: it gets a stream and its state and returns both. One whose worker dies is run again and gives the
    same, to the last bit, as on one machine; the states are the driver's to keep.
    """

    def scans(recipe: Recipe, streams: Sequence[Stream], z: Tensor, states: Mapping[str, bytes]) -> Iterator[Scan]:
        task, shared = ray.remote(max_retries=5)(_scan), ray.put(recipe)
        limit = max(2, ahead * int(ray.cluster_resources().get("CPU", 1)))
        # the longest first: else the last worker may be left with the longest stream
        waiting = deque(sorted(streams, key=lambda stream: -len(stream.rows)))
        running: list[Any] = []
        while waiting or running:
            while waiting and len(running) < limit:
                stream = waiting.popleft()
                running.append(task.remote(shared, stream.key, z[stream.rows].numpy(), states.get(stream.key)))
            done, running = ray.wait(running)
            yield from (_tensors(*part) for part in fetched(ray, done))

    return scans


def _scan(recipe: Recipe, key: str, z: Any, before: bytes | None) -> Any:
    scan = recipe.scan(key, torch.from_numpy(z.copy()), before)  # copied: what Ray shares is read-only
    # a tensor would travel as a pickle of its own, an array travels as its bytes
    reading, cuts = (tuple(part.numpy() for part in side) for side in (scan.reading, scan.cuts))
    return (scan.key, reading, cuts, scan.summary, scan.state)


def _tensors(key: str, *sides: Any) -> Scan:
    *arrays, summary, state = sides
    reading, cuts = (tuple(torch.from_numpy(part.copy()) for part in side) for side in arrays)
    return Scan(key, reading, cuts, summary, state)
