"""The service on Ray Serve while a node dies under load: two streams, a writer each on two nodes, one node killed.

    python benchmarks/service_nodes.py --seconds 20

A node is a raylet with its workers and its object store, all on this machine; killing one takes everything with it. The
killed node is the one with the first stream's writer. Prints for each stream what was acknowledged, what was lost or
learned twice, how long its callers waited at most, and whether its state has the bits of a replay of its journal.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service_load import journal_blocks
from unseen import LabelSpace, Session
from unseen.detectors.state import flatten
from unseen.scale import cluster
from unseen.scale.serve import deploy
from unseen.scale.serve.placement import Placement
from unseen.serve.client import Client, Remote
from unseen.serve.settings import Settings
from unseen.serve.stream.config import read_config
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream

DATA = "data"  # the resource of nodes that reach the data folder
STORE = 80 << 20  # bytes of object store of a node
CALLERS = 4  # of a stream
# a node counts as dead after three seconds without an answer; Ray's own settings take fifteen and more
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}


class Caller(threading.Thread):
    """One caller of a stream that sends samples, each batch with a key, and notes what was answered and when."""

    def __init__(self, url: str, id: str, z: Tensor, until: float) -> None:
        super().__init__(daemon=True)
        self.client, self.id, self.z, self.until = Client(url, timeout=30, retries=60), id, z, until
        self.seqs: list[int] = []
        self.waits: list[float] = []

    def run(self) -> None:
        remote, number = Remote(self.client, self.id), 0
        while time.monotonic() < self.until:
            asked = time.monotonic()
            self.seqs += [row["seq"] for row in remote.observe(self.z[number % len(self.z)][None])]
            self.waits.append(time.monotonic() - asked)
            number += 1
        self.client.close()


def measure(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, 64)
    with tempfile.TemporaryDirectory() as folder:
        labels.save(Path(folder) / "space.safetensors")
        nodes, placement = start_nodes(), Placement(Settings(Path(folder) / "data", encoder=None), resource=DATA)
        try:
            with cluster.connect(nodes.address) as ray:
                port = deploy.free_port("127.0.0.1")
                stop = deploy.deploy(ray, placement, port=port)
                yield from under_load(ray, nodes, placement, f"http://127.0.0.1:{port}", Path(folder), arguments)
                stop()
                deploy.shutdown()
        finally:
            nodes.shutdown()


def start_nodes() -> Any:
    """A cluster of a head, which has the gateway, and two nodes for writers."""
    cluster.module()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False}
    nodes = Cluster(head_node_args=head | {"_system_config": cluster.SYSTEM_CONFIG | HEALTH}, initialize_head=True)
    for _ in range(2):
        nodes.add_node(num_cpus=1, object_store_memory=STORE, resources={DATA: 1})
    nodes.wait_for_nodes()
    return nodes


def under_load(
    ray: Any, nodes: Any, placement: Placement, url: str, folder: Path, arguments: Arguments
) -> Iterator[Row]:
    with Client(url, timeout=120, retries=60) as client:
        streams = [client.create(folder / "space.safetensors") for _ in range(2)]
        labels = LabelSpace.load(folder / "space.safetensors")
        z, until = stream(labels, 4096), time.monotonic() + arguments.seconds
        callers = [Caller(url, one.id, z[start::CALLERS], until) for one in streams for start in range(CALLERS)]
        for caller in callers:
            caller.start()
        time.sleep(arguments.seconds / 4)
        places = [node_of(ray, placement, one.id) for one in streams]
        kill(nodes, places[0])
        for caller in callers:
            caller.join()
        for one, place in zip(streams, places, strict=True):
            own = [caller for caller in callers if caller.id == one.id]
            yield row(one, own, killed=place == places[0]) | {"equal": is_replay(one, labels, placement, folder)}


def row(remote: Remote, callers: list[Caller], *, killed: bool) -> Row:
    seqs = [seq for caller in callers for seq in caller.seqs]
    learned = remote.info()["seq"]
    return {
        "stream": "on the killed node" if killed else "on another node",
        "acknowledged": len(seqs),
        "lost": len(set(seqs) - set(range(learned))),
        "doubled": learned - len(seqs) + len(seqs) - len(set(seqs)),
        "longest_wait_s": max(wait for caller in callers for wait in caller.waits),
    }


def is_replay(remote: Remote, labels: LabelSpace, placement: Placement, folder: Path) -> bool:
    """Whether a stream's state has the bits of a fresh session over the blocks in its journal."""
    remote.state(folder / "state.safetensors")
    learned = Session.load(folder / "state.safetensors", labels)
    own = placement.settings.data / "streams" / remote.id
    fresh = read_config(own).spec(labels).build()
    for block in journal_blocks(own, labels.dim):
        fresh.observe(block)
    pairs = zip(learned.snapshot, fresh.snapshot, strict=True)
    return all(
        torch.equal(tensor, flatten(there)[name]) for here, there in pairs for name, tensor in flatten(here).items()
    )


def node_of(ray: Any, placement: Placement, role: str) -> str:
    """The id of the node that an actor runs on."""
    return str(ray.get(placement.find(ray, role).node.remote()))


def kill(nodes: Any, id: str) -> None:
    """Kill a node and everything on it."""
    nodes.remove_node(next(node for node in nodes.worker_nodes if node.node_id == id), allow_graceful=False)


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of load; the node dies after a quarter of them")
    parser.add_argument("--known", type=int, default=20)
    parser.add_argument("--negatives", type=int, default=200)
    arguments = command.parse(parser)
    command.show(checked(measure(arguments)), arguments)


def checked(rows: Iterator[Row]) -> Iterator[Row]:
    """Pass rows on, and end with an error if a sample was lost, learned twice, or a state is another."""
    bad = []
    for one in rows:
        yield one
        bad += [one] if one["lost"] or one["doubled"] or not one["equal"] else []
    if bad:
        sys.exit(f"expected every acknowledged sample once, got {bad}")


if __name__ == "__main__":
    main()
