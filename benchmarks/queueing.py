"""A small discrete-event simulation of shards that pass through the stages of nodes which may die.

A shard waits in one queue until a node has room, then goes through its stages there, each at one of the slots of a
resource (cores, GPU, link, disk). What a dying node had goes back to the front of the queue; the node returns later.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True)
class Stage:
    """One step of a shard: which resource it holds, and for how many seconds."""

    name: str
    resource: str
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A node that dies when so much time has passed, or so many shards are done, and is back after `back` seconds."""

    node: int
    back: float
    at: float | None = None
    after: int | None = None


@dataclass
class Outcome:
    """What came of a simulation."""

    seconds: float = 0.0  # when the last shard was done
    waits: list[float] = field(default_factory=list)  # of each shard, from its arrival to its end
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds of slots in use, by resource
    redone: int = 0  # shards that a dying node had
    lost: dict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # seconds of work that died with it, by resource


class Node:
    """The free slots of a node, and who waits for them."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.life, self.is_up = 0, True
        self.free = Counter(slots)
        self.queues: dict[str, deque[Shard]] = {resource: deque() for resource in slots}
        self.shards: set[Shard] = set()


@dataclass(eq=False)
class Shard:
    arrived: float
    stage: int = 0
    done: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class Simulation:
    """Nodes of one kind that work on shards; at most `ahead` shards are at a node."""

    def __init__(self, stages: Sequence[Stage], slots: Mapping[str, int], *, nodes: int, ahead: int) -> None:
        self.stages, self.slots, self.ahead = stages, slots, ahead
        self.nodes = [Node(slots) for _ in range(nodes)]
        self.waiting: deque[Shard] = deque()
        self.outcome, self.now = Outcome(), 0.0
        self._events: list[tuple[float, int, str, tuple]] = []
        self._order = count()

    def run(self, arrivals: Sequence[float], failures: Sequence[Failure] = (), *, ready: float = 0.0) -> Outcome:
        """What becomes of shards that arrive at these times; nodes begin at `ready`."""
        by_count = {one.after: one for one in failures if one.after is not None}
        for node in self.nodes:
            node.is_up = False
        for number in range(len(self.nodes)):
            self._at(ready, "up", number)
        for time in arrivals:
            self._at(time, "arrive")
        for failure in failures:
            if failure.at is not None:
                self._at(failure.at, "die", failure)
        while self._events and len(self.outcome.waits) < len(arrivals):
            self.now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(*what)
            if kind == "end" and (failure := by_count.pop(len(self.outcome.waits), None)):
                self._die(failure)
            self._send()
        self.outcome.seconds = self.now
        return self.outcome

    def _at(self, time: float, kind: str, *what: object) -> None:
        heapq.heappush(self._events, (time, next(self._order), kind, what))

    def _arrive(self) -> None:
        self.waiting.append(Shard(self.now))

    def _up(self, number: int) -> None:
        self.nodes[number].is_up = True

    def _die(self, failure: Failure) -> None:
        node = self.nodes[failure.node]
        for shard in node.shards:
            for resource, seconds in shard.done.items():
                self.outcome.lost[resource] += seconds
            self.waiting.appendleft(Shard(shard.arrived))
        self.outcome.redone += len(node.shards)
        self.nodes[failure.node] = fresh = Node(self.slots)
        fresh.is_up, fresh.life = False, node.life + 1
        self._at(self.now + failure.back, "up", failure.node)

    def _send(self) -> None:
        """Give waiting shards to the nodes that have the least to do."""
        while self.waiting:
            room = [number for number, node in enumerate(self.nodes) if node.is_up and len(node.shards) < self.ahead]
            if not room:
                return
            number = min(room, key=lambda number: len(self.nodes[number].shards))
            shard = self.waiting.popleft()
            self.nodes[number].shards.add(shard)
            self._queue(number, shard)

    def _queue(self, number: int, shard: Shard) -> None:
        resource = self.stages[shard.stage].resource
        self.nodes[number].queues[resource].append(shard)
        self._begin(number, resource)

    def _begin(self, number: int, resource: str) -> None:
        node = self.nodes[number]
        if node.free[resource] and node.queues[resource]:
            node.free[resource] -= 1
            shard = node.queues[resource].popleft()
            self._at(self.now + self.stages[shard.stage].seconds, "end", number, node.life, shard)

    def _end(self, number: int, life: int, shard: Shard) -> None:
        node, stage = self.nodes[number], self.stages[shard.stage]
        if node.life != life:
            return  # it died with its node
        node.free[stage.resource] += 1
        self.outcome.busy[stage.resource] += stage.seconds
        shard.done[stage.resource] += stage.seconds
        shard.stage += 1
        if shard.stage == len(self.stages):
            node.shards.remove(shard)
            self.outcome.waits.append(self.now - shard.arrived)
        else:
            self._queue(number, shard)
        self._begin(number, stage.resource)
