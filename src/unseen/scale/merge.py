"""One logical stream too fast for one machine: observers side by side, each with a part of every round of samples.

Every observer judges its part by the state at the start of the round; then what all parts teach becomes the next state.
The recommended detector changes its state only at fixed counts, and no round crosses one: the result is the sequential
one. Algorithm 1 is a chain, each sample scored by a bank that all earlier samples have taught; there it is an
approximation, and docs/scale.md has what it costs. A round is a pure function of (state, samples), so the same samples
give the same numbers on any machine, in any order, and however often an observer died on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors import Detector, DetectorOutput
from unseen.detectors.merging import MERGE_RULES, MergeRule
from unseen.errors import SettingError, check_choice
from unseen.scale.cluster import cpu_slots, fetch_results

Split = Literal["interleaved", "contiguous"]
SPLITS: tuple[Split, ...] = ("interleaved", "contiguous")


class LocalObservers:
    """Observers one after another in this process: the reference for any other kind."""

    def observe(
        self, detector: Detector[Any], state: Any, parts: Sequence[Float[Tensor, "n d"]], rule: MergeRule
    ) -> tuple[list[DetectorOutput], Any]:
        """The readings of every part, all judged by `state`, and the state after all of them."""
        outputs, taught = zip(*(detector.observe_part(state, part) for part in parts), strict=True)
        return list(outputs), detector.merge(state, taught, rule=rule)


@dataclass(frozen=True, eq=False)
class ShardedDetector(Detector[Any]):
    """A detector that several observers run side by side, merged after every `every` samples of the stream at most.

    The detector sets how many samples one observer learns alone, and where merges come sooner. It is used like the
    detector it holds, in a Session or by itself, and their checkpoints are each other's. Every call of `observe` ends
    with a merge, so where a merge approximates, divide a stream into calls at multiples of `every`.
    """

    detector: Detector[Any]
    shards: int = 2
    every: int = 256
    rule: MergeRule = "mean"  # how moves of banks are put together; sums need no rule
    split: Split = "interleaved"  # each sample to the next observer, or consecutive samples to each
    observers: LocalObservers = field(default_factory=LocalObservers)

    @classmethod
    def of(cls, detector: Detector[Any], **options: Any) -> ShardedDetector:
        """`detector` with observers side by side."""
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
        self.detector.check_merges()
        for name in ("name", "derives_baseline", "parts", "merges"):
            object.__setattr__(self, name, getattr(self.detector, name))

    @property
    def settings(self) -> dict[str, object]:
        """The options of the detector itself: a state does not remember how many observers made it."""
        return self.detector.settings

    def start(self) -> Any:
        return self.detector.start()

    def read(self, state: Any, z: Float[Tensor, "T d"]) -> DetectorOutput:
        return self.detector.read(state, z)

    def learn(self, state: Any, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Any]:
        """Learn from one round, shared out, and merge."""
        places = split_round(len(z), self.shards, self.split)
        if len(places) < 2:
            return self.detector.observe(state, z)
        parts = [z[own].contiguous() for own in places]
        outputs, state = self.observers.observe(self.detector, state, parts, self.rule)
        arrival = torch.cat(places).argsort()
        return DetectorOutput(*(column[arrival.to(column.device)] for column in DetectorOutput.joined(outputs))), state

    def observe(self, state: Any, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, Any]:
        """Learn from `z` round by round; return the readings in arrival order and the merged state."""
        outputs: list[DetectorOutput] = []
        rest = z  # observers check and normalise: once, or bits would move
        while len(rest) or not outputs:
            unshared = self.detector.samples_until_shared(state)
            size = unshared or self.detector.merge_interval(state, self.every)
            block, rest = rest[:size], rest[size:]
            output, state = (self.detector.observe if unshared else self.learn)(state, block)
            outputs.append(output)
        return DetectorOutput.joined(outputs), state


def split_round(count: int, shards: int, split: Split) -> list[Int[Tensor, " n"]]:
    """Which samples of a round each observer gets, in order; who would get none is left out.

    >>> [own.tolist() for own in split_round(5, 2, "interleaved")]
    [[0, 2, 4], [1, 3]]
    >>> [own.tolist() for own in split_round(5, 2, "contiguous")]
    [[0, 1, 2], [3, 4]]
    """
    samples = torch.arange(count)
    if split == "contiguous":
        return list(samples.chunk(shards))
    return [samples[first::shards] for first in range(min(shards, count))]


class StateChange(NamedTuple):
    """How an actor gets to the state of a round: from that of the round before, or from nothing."""

    round: int
    rule: MergeRule
    taught: Sequence[Any] | None  # in the round before; None where `state` is sent
    state: Any = None


class ObserverActor:
    """What runs in an actor: one detector, and the state of the last round, so that only what was taught is sent."""

    def __init__(self, detector: Detector[Any], threads: int) -> None:
        # a matrix product rounds by the number of its threads
        torch.set_num_threads(threads)
        self.detector, self.round, self.state = detector, -1, None

    def observe(self, change: StateChange, part: Float[Tensor, "n d"]) -> tuple[DetectorOutput, Any] | None:
        """The readings of a part and what it teaches; None where this actor lacks the state before."""
        change = copy_tensors(change)
        if change.taught is None:
            self.state = change.state
        elif self.round == change.round - 1:
            self.state = self.detector.merge(self.state, change.taught, rule=change.rule)
        elif self.round != change.round:  # it died meanwhile, or had no part in the round before
            return None
        self.round = change.round
        return self.detector.observe_part(self.state, part.clone())


class RayObservers(LocalObservers):
    """Observers as Ray actors. One that dies is started again and given its part again: nothing is lost by that."""

    def __init__(self, ray: Any, actors: Sequence[Any]) -> None:
        self.ray, self.actors = ray, actors
        self._round, self._state = 0, None  # the last round, and the state after it
        self._taught: Sequence[Any] = ()

    def observe(
        self, detector: Detector[Any], state: Any, parts: Sequence[Float[Tensor, "n d"]], rule: MergeRule
    ) -> tuple[list[DetectorOutput], Any]:
        self._round += 1
        whole = StateChange(self._round, rule, None, state)
        follows = self._taught and state is self._state and not isinstance(self._taught[0], type(state))
        # one state is less than one of each
        change = StateChange(self._round, rule, self._taught) if follows else whole
        done = self._answers(change, range(len(parts)), parts)
        done |= self._answers(whole, [place for place, answer in done.items() if answer is None], parts)
        outputs, self._taught = zip(*(copy_tensors(done[place]) for place in range(len(parts))), strict=True)
        self._state = detector.merge(state, self._taught, rule=rule)
        return list(outputs), self._state

    def _answers(self, change: StateChange, places: Sequence[int], parts: Sequence[Tensor]) -> dict[int, Any]:
        """What the actors of these places answer."""
        sent = self.ray.put(change) if places else None
        asked = [self.actors[place].observe.remote(sent, parts[place]) for place in places]
        return dict(zip(places, fetch_results(self.ray, asked), strict=True))


def copy_tensors(value: Any) -> Any:
    """A copy of all tensors: what comes out of the object store is aligned otherwise, and rounding follows."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple):
        parts = map(copy_tensors, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


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
