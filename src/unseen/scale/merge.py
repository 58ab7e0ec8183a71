"""One logical stream too fast for one machine: observers side by side whose states are merged now and then.

**An approximation, and an explicit choice.** Algorithm 1 is a chain: each sample is scored by a bank that all earlier
samples have taught. Here every observer starts a round with the same state, sees only its own part of the round, and
at the end the states are merged. docs/scale.md has what that costs in AUROC; one observer is exactly the sequential
result. A round is a pure function of (state, samples), so the same samples give the same numbers on any machine, in any
order, and however often an observer died on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors import Detector, Reading
from unseen.detectors.merging import MERGE_RULES, MergeRule
from unseen.detectors.state import map_state
from unseen.errors import SettingError, check_choice
from unseen.scale.cluster import cpu_slots, fetched

Split = Literal["interleaved", "contiguous"]
SPLITS: tuple[Split, ...] = ("interleaved", "contiguous")


class LocalObservers:
    """Observers one after another in this process: the reference for any other kind."""

    def observe(
        self, detector: Detector[Any], state: Any, parts: Sequence[Float[Tensor, "n d"]]
    ) -> list[tuple[Reading, Any]]:
        """Return, for every part, its readings and the state after it, all from the same `state`."""
        return [detector.observe(state, part) for part in parts]


@dataclass(frozen=True, eq=False)
class ShardedDetector(Detector[Any]):
    """A detector that several observers run side by side, merged after every `every` samples of the stream.

    It is used like the detector it holds, in a Session or by itself, and their checkpoints are each other's. Every call
    of `observe` ends with a merge, so divide a stream into calls at multiples of `every`.
    """

    detector: Detector[Any]
    shards: int = 2
    every: int = 1024
    rule: MergeRule = "mean"  # how moves of banks are put together; sums need no rule
    split: Split = "interleaved"  # each sample to the next observer, or consecutive samples to each
    observers: LocalObservers = field(default_factory=LocalObservers)

    @classmethod
    def of(cls, detector: Detector[Any], **options: Any) -> ShardedDetector:
        """Return `detector` with observers side by side."""
        return cls(detector.labels, detector, **options)

    def __post_init__(self) -> None:
        """Refuse what cannot be shared out or merged."""
        super().__post_init__()
        if self.shards < 1 or self.every < self.shards:
            raise SettingError(
                f"expected 1 <= shards <= samples between merges, got {self.shards} shards and {self.every} samples; "
                "merge less often or take fewer shards"
            )
        check_choice("a rule", self.rule, MERGE_RULES)
        check_choice("a split", self.split, SPLITS)
        self.detector.merge(self.detector.start(), [self.detector.start()])  # says so where states do not merge
        for name in ("name", "derives_baseline", "parts", "merges"):
            object.__setattr__(self, name, getattr(self.detector, name))

    @property
    def settings(self) -> dict[str, object]:
        """Return the options of the detector itself: a state does not remember how many observers made it."""
        return self.detector.settings

    def start(self) -> Any:
        return self.detector.start()

    def read(self, state: Any, z: Float[Tensor, "T d"]) -> Reading:
        return self.detector.read(state, z)

    def learn(self, state: Any, z: Float[Tensor, "T d"]) -> tuple[Reading, Any]:
        """Learn from one round, shared out, and merge."""
        if not len(z):
            return self.detector.observe(state, z)
        places = split_round(len(z), self.shards, self.split)
        done = self.observers.observe(self.detector, state, [z[own].contiguous() for own in places])
        readings, ends = zip(*done, strict=True)
        arrival = torch.cat(places).argsort()
        joined = Reading(*(column[arrival.to(column.device)] for column in Reading.joined(list(readings))))
        return joined, self.detector.merge(state, ends, rule=self.rule)

    def observe(self, state: Any, z: Float[Tensor, "T d"]) -> tuple[Reading, Any]:
        """Learn from `z` round by round; return the readings in arrival order and the merged state."""
        readings = []
        for block in z.split(self.every):  # observers check and normalise: once, or bits would move
            reading, state = self.learn(state, block)
            readings.append(reading)
        return Reading.joined(readings), state


def split_round(count: int, shards: int, split: Split) -> list[Int[Tensor, " n"]]:
    """Return which samples of a round each observer gets, in order; who would get none is left out.

    >>> [own.tolist() for own in split_round(5, 2, "interleaved")]
    [[0, 2, 4], [1, 3]]
    >>> [own.tolist() for own in split_round(5, 2, "contiguous")]
    [[0, 1, 2], [3, 4]]
    """
    samples = torch.arange(count)
    if split == "contiguous":
        return list(samples.chunk(shards))
    return [samples[first::shards] for first in range(min(shards, count))]


class ObserverActor:
    """What runs in an actor: one detector, built once, and no state between two rounds."""

    def __init__(self, detector: Detector[Any], threads: int) -> None:
        # a matrix product rounds by the number of its threads
        torch.set_num_threads(threads)
        self.detector = detector

    def observe(self, state: Any, part: Float[Tensor, "n d"]) -> tuple[Reading, Any]:
        """Return the readings of a part and the state after it."""
        # cloned, because what comes out of the object store is aligned otherwise, and rounding follows
        return self.detector.observe(map_state(torch.clone, state), part.clone())


@dataclass(frozen=True)
class RayObservers(LocalObservers):
    """Observers as Ray actors. One that dies is started again and given its part again: nothing is lost by that."""

    ray: Any
    actors: Sequence[Any]

    def observe(
        self, detector: Detector[Any], state: Any, parts: Sequence[Float[Tensor, "n d"]]
    ) -> list[tuple[Reading, Any]]:
        shared = self.ray.put(state)
        done = [actor.observe.remote(shared, part) for actor, part in zip(self.actors, parts, strict=False)]
        return list(fetched(self.ray, done))


@contextmanager
def ray_observers(ray: Any, detector: Detector[Any], shards: int) -> Iterator[RayObservers]:
    """Yield one Ray actor per shard, each on a CPU slot of its own while there are enough, and stop them afterwards."""
    slots = min(1.0, int(1000 * cpu_slots(ray) / shards) / 1000)
    kind = ray.remote(num_cpus=slots, max_restarts=-1, max_task_retries=-1)(ObserverActor)
    shared, threads = ray.put(detector), torch.get_num_threads()
    observers = [kind.remote(shared, threads) for _ in range(shards)]
    try:
        yield RayObservers(ray, observers)
    finally:
        for actor in observers:
            ray.kill(actor)
