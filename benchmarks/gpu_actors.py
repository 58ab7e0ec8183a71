"""`unseen encode` by Ray actors on a real GPU: cores decode, models share the GPU; against the local path.

    python benchmarks/gpu_actors.py --images ../shared/images --count 8192

Each run has a Ray of its own. `running` leaves out what came before the first shard: starting processes, importing
torch, loading models. In the last run a model is killed when a third is done. `furthest` is the largest distance of a
vector from that of the local path. `batch that fits` gives one model a small share of the memory and a batch that does
not fit there.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import torch

from scale import kill_actor
from unseen.encoders import load_encoder
from unseen.features import FeatureCache, Features, encode_images, load_features
from unseen.features.shards import read_shards
from unseen.images import find_images
from unseen.scale import cluster, encode
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments

SIZE = 500, 375  # of a photo
DISTINCT = 256  # photos that are enlarged; the rest are the same files under other names
MEMORY = 2 << 30  # bytes of the GPU that the model with too large a batch gets


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--images", default="../shared/images", help="folder, archive or list of photos")
    parser.add_argument("--encoder", default="offline")
    parser.add_argument("--count", type=int, default=8192, help="photos of a run")
    parser.add_argument("--shard", type=int, default=encode.SHARD, help="photos of a shard")
    parser.add_argument("--batch", type=int, default=64, help="photos that a model gets at once")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.5, 0.25], help="of a GPU, for each model")
    parser.add_argument("--ray", default="local", help="start one here, or join that of this machine (auto)")
    arguments = command.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        command.show(measured(Path(folder), arguments), arguments)


def measured(folder: Path, arguments: Arguments) -> Iterator[Row]:
    photos = enlarged(folder / "photos", arguments)
    yield local_run(photos, folder / "local", arguments)
    expected = load_features(folder / "local")
    for share in arguments.shares:
        yield ray_run(photos, folder / f"ray-{share}", expected, arguments, share=share, kills=False)
    yield ray_run(photos, folder / "killed", expected, arguments, share=arguments.shares[-1], kills=True)
    yield batch_that_fits(photos, folder / "small", arguments)


def enlarged(folder: Path, arguments: Arguments) -> Path:
    """A folder of photos of the size of the other measurements."""
    folder.mkdir()
    pictures = [entry.read().pixels.resize(SIZE) for entry in islice(find_images(arguments.images), DISTINCT)]
    for number, picture in enumerate(islice(pictures, arguments.count)):
        picture.save(folder / f"{number:06d}.jpg", quality=90)
    first = cycle(sorted(folder.iterdir()))
    for number in range(len(pictures), arguments.count):
        os.link(next(first), folder / f"{number:06d}.jpg")
    return folder


def local_run(photos: Path, folder: Path, arguments: Arguments) -> Row:
    """What `unseen encode` does without Ray."""
    encoder = load_encoder(arguments.encoder)
    entries, cache, started = find_images(str(photos)), FeatureCache(folder, encoder), time.perf_counter()
    done = sum(map(len, encode_images(entries, encoder, cache, size=arguments.batch)))
    seconds = time.perf_counter() - started
    return {"what": "one process", "device": device_name(), "cores": os.cpu_count(), "images": done,
            "seconds": seconds, "running_per_s": done / seconds}  # fmt: skip


def ray_run(photos: Path, folder: Path, expected: Features, arguments: Arguments, *, share: float, kills: bool) -> Row:
    job = encode.EncodeJob(arguments.encoder, None, arguments.batch, gpus=share)
    started, arrived, killed = time.perf_counter(), list[tuple[float, int]](), 0
    with cluster.connect(arguments.ray) as ray:
        plan = encode.plan(ray, [str(photos)], folder, job, size=arguments.shard)
        for shard in encode.run(ray, plan, job):
            arrived.append((time.perf_counter() - started, shard.encoded))
            if kills and not killed and len(arrived) >= len(plan.shards) / 3:
                killed = kill_actor()
        models = int(ray.cluster_resources()["GPU"] / share)
    (first, _), (last, _) = arrived[0], arrived[-1]
    keys = [row["key"] for _, rows in read_shards(folder) for row in rows]
    return {
        "what": f"Ray, {share:g} of a GPU each" + (", a model killed" if killed else ""),
        "models": models,
        "images": plan.total,
        "seconds": last,
        "first_s": first,
        "running_per_s": sum(count for _, count in arrived[1:]) / (last - first),
        "lost": plan.total - len(set(keys)),
        "doubled": len(keys) - len(set(keys)),
        "furthest": furthest(load_features(folder), expected),
    }


def furthest(found: Features, expected: Features) -> float:
    """The largest distance of two vectors of one image."""
    assert found.keys == expected.keys
    return float(torch.linalg.vector_norm(found.z - expected.z, dim=1).max())


def batch_that_fits(photos: Path, folder: Path, arguments: Arguments) -> Row:
    """Give an actor little of the GPU's memory and all its shard at once, and return the batch that it came to."""
    size = min(arguments.count, 4096)
    job = encode.EncodeJob(arguments.encoder, None, size)
    with cluster.connect(arguments.ray) as ray:
        plan = encode.plan(ray, [str(photos)], folder, job, size=size)
        actor = ray.remote(num_gpus=1, num_cpus=0)(SmallActor).remote(job, plan.folder, plan.model.fingerprint)
        ray.get(actor.load.remote())
        decoded = ray.remote(encode.decode_shard).remote(plan.model.prepare, plan.shards[0])
        done = ray.get(actor.encode.remote(decoded))
        batch = ray.get(actor.batch_now.remote())
        ray.kill(actor)
    return {"what": "batch that fits", "memory_gb": MEMORY / 2**30, "asked": size, "batch": batch,
            "images": done.encoded, "error": done.error}  # fmt: skip


class SmallActor(encode.EncoderActor):
    """An actor that may take only some of the GPU's memory."""

    def load(self) -> None:
        """Load the model once the limit is set."""
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(MEMORY / torch.cuda.get_device_properties(0).total_memory)
        super().load()

    def batch_now(self) -> int:
        """The batch that fits."""
        return self.batch


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


if __name__ == "__main__":
    main()
