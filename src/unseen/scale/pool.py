"""Actors that share work: what one had when it died goes to another, so many times and no more.

Ray itself would send the work of a dead actor to its successor only. Where a node has died there may be no room for a
successor, and the work would wait for ever; so actors are not restarted by Ray but replaced here, and one that has not
begun gets no work.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from unseen.errors import DataError, first_line
from unseen.scale.cluster import fetch_results

MAX_ATTEMPTS = 4  # at one piece of work, or to start an actor: more deaths than that are no accident
AHEAD = 2  # pieces of work at an actor, so that it never waits for us

T = TypeVar("T", bound=Hashable)


class WorkerDeath(NamedTuple):
    """What stands in place of a result whose workers died each time."""

    reason: str


class ActorPool:
    """Actors of one kind, each made by `start`; `ready` asks one to load what it needs."""

    def __init__(self, ray: Any, start: Callable[[], Any], ready: Callable[[Any], Any], count: int) -> None:
        self.ray, self._start, self._ready = ray, start, ready
        self.actors: list[Any] = []  # that may get work
        self._starting: dict[Any, Any] = {}  # what `ready` will answer -> actor
        self._deaths = 0  # of actors that had not begun
        for _ in range(count):
            self._add()

    def stop(self) -> None:
        """End all actors."""
        for actor in [*self.actors, *self._starting.values()]:
            self.ray.kill(actor)
        self.actors, self._starting = [], {}

    def results(self, items: Iterable[T], submit: Callable[[Any, T], Any]) -> Iterator[tuple[T, Any]]:
        """Yield each item with its result, or with `WorkerDeath`, as they are done; `submit` sends one to an actor."""
        waiting, attempts = deque(items), Counter[T]()
        running: dict[Any, tuple[Any, T]] = {}
        while waiting or running:
            for actor, item in self._free(waiting, running):
                running[submit(actor, item)] = actor, item
            ref = self.ray.wait([*running, *self._starting])[0][0]
            if ref in self._starting:
                self._begin(ref)
                continue
            actor, item = running.pop(ref)
            try:
                yield item, fetch_results(self.ray, ref)
            except self.ray.exceptions.RayError as error:
                self._check_death(error)
                self._check_actor(actor, error)
                attempts[item] += 1
                if attempts[item] < MAX_ATTEMPTS:
                    waiting.append(item)
                else:
                    yield item, WorkerDeath(first_line(error))

    def _free(self, waiting: deque[T], running: dict[Any, tuple[Any, T]]) -> Iterator[tuple[Any, T]]:
        """Yield an actor for each piece of work that can be sent now, those with the least first."""
        for filled in range(AHEAD):
            loads = Counter(id(actor) for actor, _ in running.values())
            for actor in self.actors:
                if waiting and loads[id(actor)] <= filled:
                    yield actor, waiting.popleft()

    def _add(self) -> None:
        actor = self._start()
        self._starting[self._ready(actor)] = actor

    def _begin(self, ref: Any) -> None:
        actor = self._starting.pop(ref)
        try:
            fetch_results(self.ray, ref)
            self.actors.append(actor)
        except self.ray.exceptions.RayError as error:
            self._check_death(error)
            self._deaths += 1
            if self._deaths >= MAX_ATTEMPTS * (1 + len(self.actors) + len(self._starting)):
                raise DataError(
                    f"expected workers that start, got {self._deaths} that died ({first_line(error)}); "
                    "look for a node without memory for the model"
                ) from error
            self._add()

    def _check_death(self, error: Any) -> None:
        """Raise an error of the work itself; where a worker, an actor or a node died, also on the way, return."""
        kinds = self.ray.exceptions
        if isinstance(error, kinds.RayTaskError) and not isinstance(error.cause, kinds.RayError):
            raise error

    def _check_actor(self, actor: Any, error: Exception) -> None:
        """Replace an actor that died; where a task died before it reached the actor, the actor stays."""
        if isinstance(error, self.ray.exceptions.RayActorError) and actor in self.actors:
            self.actors.remove(actor)
            self.ray.kill(actor)
            self._add()
