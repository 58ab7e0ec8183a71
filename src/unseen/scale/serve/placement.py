"""How a service is spread over a cluster, and how its actors are found."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from unseen.errors import StateError
from unseen.serve.settings import Settings

NAMESPACE = "unseen"
DIRECTORY = "directory"  # the role of the one actor that knows all streams
CPU_SHARE = 0.01  # of a CPU slot, for what mostly waits: a hundred streams fit where one slot is left
LOCK_SECONDS = 60.0  # a new actor waits for the lock of one that is on its way out

T = TypeVar("T")


class Placement(NamedTuple):
    """How a service is spread over a cluster."""

    settings: Settings
    name: str = NAMESPACE  # of the Serve application; two services on one cluster need two
    resource: str | None = None  # only nodes with this Ray resource reach the data folder
    threads: int = 1  # of torch: what a replay computes must be what was computed before

    def actor(self, ray: Any, role: str, kind: type) -> Any:
        """An actor class whose one instance is found by name, is kept alive and started again when it dies."""
        return ray.remote(kind).options(
            name=f"{self.name}-{role}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            num_cpus=CPU_SHARE,
            scheduling_strategy="SPREAD",  # a node that dies takes few streams with it
            resources={self.resource: 0.001} if self.resource else None,
        )

    def find(self, ray: Any, role: str) -> Any:
        """The living actor of a role; ValueError when there is none."""
        return ray.get_actor(f"{self.name}-{role}", namespace=NAMESPACE)


def wait_for_lock(take: Callable[[], T]) -> T:
    """What `take` gets, waiting for a predecessor to release its lock."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return take()
        except StateError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
