"""Every verb on a cluster of three nodes, one of them killed in the middle; prints one JSON row per verb.

    PYTHONPATH=src:tests python -m helpers.three_nodes --scale 10

A process of its own, because the tests hold a Ray already. A node is a raylet with its workers and its object store,
all on this machine; killing one takes everything with it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from helpers import tiny_text
from helpers.streams import space, stream
from helpers.tiny_models import pictures, save_clip
from unseen import SessionSpec, keyed, version
from unseen.encoders import load_encoder
from unseen.errors import SettingError
from unseen.features import FeatureCache, encode_images, load_features
from unseen.features.shards import read_shards
from unseen.images import find_images
from unseen.scale import cluster
from unseen.scale import encode as scaled_encode
from unseen.scale import score as scaled_score

GIVE_UP = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}  # Ray itself waits 60 s for a head
STORE = 80 << 20  # bytes of object store of a node
# a node that cannot be connected to for three seconds is dead; Ray's own settings take fifteen and more
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
Row = dict[str, Any]


class ThreeNodes:
    """A cluster on this machine whose nodes can be killed."""

    def __init__(self) -> None:
        cluster.module()
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        config = {"_system_config": cluster.SYSTEM_CONFIG | HEALTH}
        self.nodes = Cluster(head_node_args=head | config, initialize_head=True)
        self.killed = 0
        for _ in range(2):
            self.add()
        self.nodes.wait_for_nodes()

    def add(self) -> None:
        """Add a node of one core which says that it has a GPU: what asks for one runs there, on the CPU."""
        self.nodes.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE)

    def kill(self, id: str | None = None) -> None:
        """Kill a node that is not the head, once for each verb."""
        if len(self.nodes.worker_nodes) == 2:
            victim = next(node for node in self.nodes.worker_nodes if id in (None, node.node_id))
            self.nodes.remove_node(victim, allow_graceful=False)
            self.killed += 1

    def repair(self) -> None:
        while len(self.nodes.worker_nodes) < 2:
            self.add()
        self.nodes.wait_for_nodes()


def encode(ray: Any, nodes: ThreeNodes, folder: Path, scale: int, *, gpus: bool = False) -> Row:
    """Encode with three models on CPUs, or with models that share two GPUs, which the nodes only say they have."""
    model, images = save_clip(folder / "model"), save_pictures(folder / "images", 48 * scale)
    job = scaled_encode.EncodeJob(str(model), None if gpus else "cpu", 4, actors=None if gpus else 3)
    plan = scaled_encode.plan(ray, [str(images)], folder / "ray", job, size=4)
    for _ in scaled_encode.run(ray, plan, job):
        nodes.kill()
    return compared("encode by GPUs" if gpus else "encode", model, images, folder)


def compared(verb: str, model: Path, images: Path, folder: Path) -> Row:
    """The row of an encoding whose vectors are in `ray`, beside those of this process."""
    encoder = load_encoder(model, device="cpu")
    list(encode_images(find_images(str(images)), encoder, FeatureCache(folder / "here", encoder), size=4))
    here, there = load_features(folder / "here"), load_features(folder / "ray")
    keys = [row["key"] for _, rows in read_shards(folder / "ray") for row in rows]
    equal = here.keys == there.keys and torch.equal(here.z, there.z)
    return counted(verb, len(list(images.iterdir())), keys, equal=equal)


def score(ray: Any, nodes: ThreeNodes, folder: Path, scale: int) -> Row:
    labels, count = space(dtype=torch.float32), 3000 * scale
    z, keys = stream(labels, count), [f"camera {number % 60}" for number in range(count)]
    job, parts = keyed.StreamJob(SessionSpec(labels, "default"), keep_state=True), keyed.split(keys)
    found = []
    for result in scaled_score.on_ray(ray)(job, parts, z, {}):
        found.append(result)
        nodes.kill()
    serial = {result.key: bits(result) for result in keyed.run_serially(job, parts, z, {})}
    equal = {result.key: bits(result) for result in found} == serial
    rows = [f"{one.key} {number}" for one in found for number in range(len(one.verdicts))]
    return counted("score --by", count, rows, equal=equal)


def bits(result: keyed.StreamResult) -> tuple[bytes, str]:
    """Every column of the verdicts, and the checksum in the state."""
    header = json.loads(result.state[8 : 8 + int.from_bytes(result.state[:8], "little")])
    return result.verdicts.structured().tobytes(), header["__metadata__"]["sha256"]


def other_versions(nodes: ThreeNodes) -> Row:
    """What a machine is told that has another Ray, or another version of this package, than the cluster."""
    ray, told = cluster.module(), []
    for module in (ray, version):
        try:
            with patch.object(module, "__version__", "0.0.1"), cluster.connect(nodes.nodes.address):
                told.append("nothing")
        except SettingError as error:
            told.append(str(error))
    return {"verb": "versions", "told": told}


def without_head(words: list[str], begun: Callable[[], bool]) -> list[str]:
    """What a command prints on a second cluster, after the first one lost its head as soon as it had begun."""
    ends = []
    for kills in (True, False):
        nodes = ThreeNodes()
        command = subprocess.Popen(
            [sys.executable, "-m", "unseen", *words, "--json", "--ray", nodes.nodes.address],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | GIVE_UP,
        )
        try:
            while kills and not begun():
                assert command.poll() is None
                time.sleep(0.05)
            if kills:
                nodes.nodes.remove_node(nodes.nodes.head_node, allow_graceful=False)
            printed, _ = command.communicate(timeout=600)
            ends.append(command.returncode)
        finally:
            command.kill()
            nodes.nodes.shutdown()
    assert (ends[0] != 0, ends[1]) == (True, 0)
    return printed.splitlines()


def encode_without_head(folder: Path) -> Row:
    model, images, out = save_clip(folder / "model"), save_pictures(folder / "images", 48), folder / "out"
    words = ["encode", str(images), "--encoder", str(model), "-o", str(out), "--device", "cpu"]
    without_head([*words, "--batch", "2"], lambda: any(out.glob("*.safetensors")))
    keys = [row["key"] for _, rows in read_shards(out) for row in rows]
    inputs = [entry.path for entry in find_images(str(images))]
    return counted("encode, head killed", len(inputs), keys, equal=sorted(keys) == inputs)


def score_without_head(folder: Path) -> Row:
    """Score streams with states: none may have learned before all are done, or the second run would teach twice."""
    labels, count, states = space(dtype=torch.float32), 12_000, folder / "states"
    keys = [f"camera {number % 60}" for number in range(count)]
    labels.save(folder / "space.safetensors")
    save_file({"features": stream(labels, count)}, folder / "z.safetensors", metadata={"camera": json.dumps(keys)})
    words = ["score", str(folder / "z.safetensors"), "--space", str(folder / "space.safetensors")]
    words += ["--by", "camera", "--detector", "online"]
    rows = without_head([*words, "--state", str(states)], lambda: any(states.glob(".new-*/*.safetensors")))
    local = subprocess.run([sys.executable, "-m", "unseen", *words, "--json"], capture_output=True, text=True)
    verdicts = [row["key"] for row in map(json.loads, rows) if "key" in row]
    return counted("score --by, head killed", count, verdicts, equal=rows == local.stdout.splitlines())


def heads() -> Iterator[Row]:
    """Yield a row for each command that lost the head of its cluster, and was run again on another."""
    for work in (encode_without_head, score_without_head):
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            row = work(Path(folder))
        yield row | {"killed": 1, "seconds": round(time.perf_counter() - started, 1)}


def save_pictures(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number, image in enumerate(pictures(count)):
        image.pixels.save(folder / f"{number:05d}.png")
    return folder


def counted(verb: str, rows_in: int, rows_out: list[str], *, equal: bool) -> Row:
    """The row of a verb: what came in and out, by key."""
    distinct = len(set(rows_out))
    return {
        "verb": verb,
        "rows_in": rows_in,
        "rows_out": len(rows_out),
        "lost": rows_in - distinct,
        "doubled": len(rows_out) - distinct,
        "equal": equal,
    }


VERBS: dict[str, Callable[[Any, ThreeNodes, Path, int], Row]] = {
    "encode": encode,
    "score": score,
    "gpus": partial(encode, gpus=True),
}


def run(verbs: list[str], scale: int) -> Iterator[Row]:
    """Yield one row per verb."""
    started = time.perf_counter()
    nodes = ThreeNodes()
    try:
        yield other_versions(nodes)
        with cluster.connect(nodes.nodes.address) as ray:
            for module in (tiny_text, __import__(__name__, fromlist=["run"])):
                ray.cloudpickle.register_pickle_by_value(module)
            yield {"verb": "start", "seconds": round(time.perf_counter() - started, 1)}
            for verb in verbs:
                yield timed(partial(VERBS[verb], ray, nodes), nodes, scale)
    finally:
        nodes.nodes.shutdown()


def timed(work: Callable[[Path, int], Row], nodes: ThreeNodes, scale: int) -> Row:
    nodes.repair()
    before, started = nodes.killed, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        row = work(Path(folder), scale)
    return row | {"killed": nodes.killed - before, "seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--scale", type=int, default=1, help="how many times the rows of the short form")
    parser.add_argument("--summary", action="store_true", help="kill heads too, and print the sums in a last line")
    arguments = parser.parse_args()
    logging.getLogger("ray").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    rows = []
    for row in chain(run(arguments.verbs, arguments.scale), heads() if arguments.summary else []):
        print(json.dumps(row), flush=True)
        rows.append(row)
    if arguments.summary:
        print(summary([row for row in rows if "rows_in" in row]))


def summary(rows: list[Row]) -> str:
    """The sums over all verbs in one line."""
    names = ("rows_in", "rows_out", "lost", "doubled", "killed")
    totals = (f"{name.replace('_', ' ')} {sum(row[name] for row in rows):,}" for name in names)
    return ", ".join(totals) + f", equal in {sum(row['equal'] for row in rows)} of {len(rows)} verbs"


if __name__ == "__main__":
    main()
