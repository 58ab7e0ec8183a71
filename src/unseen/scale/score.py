"""Score many streams on Ray: a stream is sequential, because what it learns from a sample depends on those before.

So a long stream is one task. Sending a task takes milliseconds; short streams share one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unseen.keyed import KeyedStream, StreamJob, StreamResult, StreamRunner
from unseen.labels import LabelSpace
from unseen.scale.cluster import cpu_slots, task_results
from unseen.verdicts import Verdicts


@dataclass(frozen=True)
class TaskNumbers:
    """How streams share tasks, and tasks a cluster."""

    max_retries: int = 5  # of a task whose worker or node died
    ahead: int = 2  # tasks sent out per core
    task_samples: int = 2048  # streams of fewer samples share a task
    tasks_per_slot: int = 4  # at least, where there are enough streams: cores should end at about the same time


NUMBERS = TaskNumbers()


def on_ray(ray: Any, *, ahead: int = NUMBERS.ahead) -> StreamRunner:
    """A runner that scores streams on Ray and yields each result when it is done.

    A task is pure: it gets streams and their states and returns both. One whose worker dies is run again and gives the
    same, to the last bit, as on one machine; the states are the driver's to keep.
    """

    def run(
        job: StreamJob, streams: Sequence[KeyedStream], z: Tensor, states: Mapping[str, bytes]
    ) -> Iterator[StreamResult]:
        task, shared = ray.remote(max_retries=NUMBERS.max_retries)(_run_streams), ray.put(job)

        def submit(group: Sequence[KeyedStream]) -> Any:
            parts = [(stream.key, z[stream.rows].numpy(), states.get(stream.key)) for stream in group]
            return task.remote(shared, parts)

        slots = int(cpu_slots(ray))
        groups = grouped(streams, min(NUMBERS.task_samples, len(z) // (NUMBERS.tasks_per_slot * slots)))
        for _, results in task_results(ray, submit, groups, most=max(2, ahead * slots)):
            if isinstance(results, Exception):
                raise results
            yield from (_result(job.spec.labels, *part) for part in results)

    return run


def grouped(streams: Sequence[KeyedStream], samples: int) -> list[list[KeyedStream]]:
    """The streams in groups of at least so many samples, but for the last; the longest streams come first.

    Else the last worker may be left with the longest stream.
    """
    groups: list[list[KeyedStream]] = []
    room = 0
    for stream in sorted(streams, key=lambda stream: -len(stream.rows)):
        if room <= 0:
            groups.append([])
            room = samples
        groups[-1].append(stream)
        room -= len(stream.rows)
    return groups


def _run_streams(job: StreamJob, streams: Sequence[tuple[str, Any, bytes | None]]) -> list[Any]:
    return [_run_stream(job, *stream) for stream in streams]


def _run_stream(job: StreamJob, key: str, z: Any, before: bytes | None) -> Any:
    """A result without its names, and with arrays: a tensor would travel as a pickle of its own."""
    result = job.run(key, torch.from_numpy(z.copy()), before)  # copied: what Ray shares is read-only
    return key, [column.numpy() for column in result.verdicts.tensors], result.summary, result.state


def _result(labels: LabelSpace, key: str, arrays: Any, summary: Any, state: bytes) -> StreamResult:
    verdicts = Verdicts(labels.names, labels.negatives, *(torch.from_numpy(array.copy()) for array in arrays))
    return StreamResult(key, verdicts, summary, state)
