"""The one place that starts or joins Ray."""

import importlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from unseen import version
from unseen.errors import SettingError, UnseenError, first_line, import_extra

T = TypeVar("T")

LOCAL = "local"
CONNECT_TIMEOUT = 10.0  # seconds for a cluster to answer
# Ray ends a worker that idles for a second once there are more workers than cores: beside one actor a core, every short
# task would import torch anew. And it gives workers a low priority, which only delays where nothing else is served.
SYSTEM_CONFIG = {"num_workers_soft_limit": 64, "worker_niceness": 0}
HELP = "Run on Ray: `auto` joins the running cluster, `local` starts one here, or host:port or ray://host:10001."


def module() -> Any:
    """Ray, or say what to install."""
    # what Ray prints of its dashboard, usage and progress belongs in its log files, not between our lines
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return import_extra("ray", "ray")


@contextmanager
def connect(address: str, *, workers: int | None = None, memory: int | None = None) -> Iterator[Any]:
    """Yield Ray, joined to `address`, and leave it afterwards; a Ray that was already joined is used and kept.

    `workers` (CPU slots) and `memory` (bytes of object store) shape a local Ray only: a cluster knows its own.
    """
    ray = module()
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        settings |= {"num_cpus": workers, "object_store_memory": memory}
        settings |= {"include_dashboard": False, "_system_config": SYSTEM_CONFIG}
    try:
        _check_listening(address)
        ray.init(address, **settings)
    except Exception as error:  # Ray raises bare ones when a start-up times out
        raise SettingError(_no_cluster(address, error)) from error
    try:
        if address != LOCAL:
            _check_nodes(ray)
        yield ray
    finally:
        ray.shutdown()


def fetch_results(ray: Any, found: Any) -> Any:
    """The results of tasks; an error that one raised on purpose is raised here as it was there."""
    try:
        return ray.get(found)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UnseenError):
            raise error.cause from None
        raise


def cpu_slots(ray: Any) -> float:
    """The CPU slots of the cluster, at least one."""
    return max(1.0, float(ray.cluster_resources().get("CPU", 1)))


def check_gpus(ray: Any) -> None:
    """Raise where no GPU is in the cluster: what asks for one would wait for ever."""
    if not ray.cluster_resources().get("GPU", 0):
        raise SettingError(
            "expected a node with a GPU, of which every model gets one, got a cluster without; "
            "add one (`ray start --address HEAD:6379 --num-gpus 1`), or ask for none (--device cpu)"
        )


def task_results(ray: Any, submit: Callable[[T], Any], items: Iterable[T], *, most: int) -> Iterator[tuple[T, Any]]:
    """Yield each item with the result of its task, as they are done; with an error where its workers died each time.

    At most `most` tasks are out at a time: enough to keep all cores busy, not so many that all inputs lie in the object
    store.
    """
    waiting, running = deque(items), dict[Any, T]()
    while waiting or running:
        while waiting and len(running) < most:
            item = waiting.popleft()
            running[submit(item)] = item
        done = ray.wait([*running])[0][0]
        item = running.pop(done)
        try:
            yield item, fetch_results(ray, done)
        except ray.exceptions.RayTaskError:  # of the work itself
            raise
        except ray.exceptions.RayError as error:
            yield item, error


def _no_cluster(address: str, error: Exception) -> str:
    if "ersion mismatch" in str(error):
        return (
            f"expected a cluster at {address!r} with the Ray and the Python of this machine, got others "
            f"({' '.join(str(error).split())}); install the same on both"
        )
    return (
        f"expected a Ray cluster at {address!r}, got none ({first_line(error)}); "
        "start one with `ray start --head`, or pass --ray local"
    )


def _check_nodes(ray: Any) -> None:
    """Raise where a node has another version of this package, or none: its results could differ without a word."""
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    task = ray.remote(num_cpus=0, max_retries=0)(_installed_version)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = [task.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote() for node in nodes]
    for node, answer in zip(nodes, asked, strict=True):
        try:
            found = f"version {ray.get(answer)}"
        except ray.exceptions.RayTaskError as error:
            found = f"none ({first_line(error.cause)})"
        except ray.exceptions.RayError:  # the node died meanwhile: whoever gets its work is another
            continue
        if found != f"version {version.__version__}":
            raise SettingError(
                f"expected unseen {version.__version__} on every node, as here, got {found} on "
                f"{node['NodeManagerAddress']}; install the same version there"
            )


def _installed_version() -> str:
    return version.__version__


def _check_listening(address: str) -> None:
    """Raise within seconds where nobody listens at a HOST:PORT: Ray itself would wait for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname and place.port:
        socket.create_connection((place.hostname, place.port), timeout=CONNECT_TIMEOUT).close()
