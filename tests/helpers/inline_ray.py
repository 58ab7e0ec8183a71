"""As much of Ray as map-reduce needs, in this process: what is shipped is pickled, what is asked is done at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


class Ref:
    """A value in the store; compared by identity, as Ray's are."""

    def __init__(self, value: Any) -> None:
        self.bytes = pickle.dumps(value)


class InlineRayError(Exception):
    """Nothing dies in this process: it is never raised."""


class InlineRay:
    exceptions = SimpleNamespace(RayTaskError=RuntimeError, RayError=InlineRayError, RayActorError=InlineRayError)

    def __init__(self, cpus: int = 2) -> None:
        self.cpus, self.killed, self.started = cpus, 0, 0

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    def put(self, value: Any) -> Ref:
        return Ref(value)

    def get(self, what: Any) -> Any:
        return [self.get(one) for one in what] if isinstance(what, list) else pickle.loads(what.bytes)

    def wait(self, refs: Sequence[Ref], num_returns: int = 1) -> tuple[list[Ref], list[Ref]]:
        return list(refs[-num_returns:]), list(refs[:-num_returns])  # the last first: order must not matter

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        assert options["num_cpus"] <= self.cpus

        def wrapped(thing: Any) -> Any:
            return Actors(self, thing) if isinstance(thing, type) else Method(self, thing)

        return wrapped

    def seen(self, argument: Any) -> Any:
        return self.get(argument) if isinstance(argument, Ref) else pickle.loads(pickle.dumps(argument))


class Method:
    def __init__(self, ray: InlineRay, call: Callable[..., Any]) -> None:
        self.ray, self.call = ray, call

    def remote(self, *arguments: Any) -> Ref:
        return Ref(self.call(*map(self.ray.seen, arguments)))


class Actors:
    def __init__(self, ray: InlineRay, kind: type) -> None:
        self.ray, self.kind = ray, kind

    def remote(self, *arguments: Any) -> Actor:
        self.ray.started += 1
        return Actor(self.ray, self.kind(*map(self.ray.seen, arguments)))


class Actor:
    def __init__(self, ray: InlineRay, own: Any) -> None:
        self._ray, self._own = ray, own

    def __getattr__(self, name: str) -> Method:
        return Method(self._ray, getattr(self._own, name))
