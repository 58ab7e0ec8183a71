"""What each stage of the pipeline takes on a core of this machine, and `encode --ray` against the local path.

    python benchmarks/stages.py --json > stages.jsonl       # what benchmarks/capacity.py reads
    python benchmarks/stages.py --count 512 --shard 32 --rounds 3

Stages are timed by as many workers at once as there are cores, because cores share caches and memory, in seconds of a
processor, which a busy machine changes little; starting, loading, sending and the journal in seconds of a clock. Rounds
of the local path (`unseen encode`) and of Ray alternate, on the same photos and as many cores, each on a Ray of its own
from its start on, as the command does; in the last one a worker is killed when a third is done. `running` leaves out
what came before the first shard of each worker: starting processes, importing torch, loading the model. `others` are
the cores that other work on the machine took meanwhile.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from scale import kill_actor, processor_seconds
from unseen import keyed
from unseen.encoders import load_encoder
from unseen.features import FeatureCache, encode_images
from unseen.features.shards import write_shard
from unseen.images import find_images
from unseen.scale import cluster, encode
from unseen.serve.stream.journal import OBSERVE, JournalEntry, Position, SqliteJournal
from unseen.session import SessionSpec
from unseen.storage.remote import location
from unseen_bench.run import Row, command
from unseen_bench.run.command import Arguments
from unseen_bench.run.synthetic import label_space, stream

SIZE = 500, 375  # of a photo, as in docs/performance.md
NAMES, NEGATIVES, BLOCK = 1_000, 10_000, 256  # what scoring and the journal are timed with


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--images", default="../shared/images", help="folder, archive or list of photos")
    parser.add_argument("--encoder", default="offline")
    parser.add_argument("--count", type=int, default=192, help="photos of a run")
    parser.add_argument("--shard", type=int, default=16, help="photos of a shard")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=1)
    arguments = command.parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        command.show(measured(Path(folder), arguments), arguments)


def measured(folder: Path, arguments: Arguments) -> Iterator[Row]:
    photos = listed(folder, arguments)
    yield calibrated(photos, folder / "stages", arguments)
    for number in range(arguments.rounds):
        yield local_run(photos, folder / f"local-{number}", arguments)
        yield ray_run(photos, folder / f"ray-{number}", arguments, kills=False)
    yield ray_run(photos, folder / "killed", arguments, kills=True)


@contextmanager
def planned(photos: Path, folder: Path, arguments: Arguments) -> Iterator[tuple[Any, encode.EncodePlan, float]]:
    """Yield a fresh Ray, the plan of a run on it, and the seconds until Ray was there; as `unseen encode` begins."""
    started = time.perf_counter()
    with cluster.connect("local", workers=arguments.workers, memory=512 << 20) as ray:
        start = time.perf_counter() - started
        yield ray, encode.plan(ray, [str(photos)], folder, job_of(arguments), size=arguments.shard), start


def job_of(arguments: Arguments) -> encode.EncodeJob:
    return encode.EncodeJob(arguments.encoder, "cpu", actors=arguments.workers)


def listed(folder: Path, arguments: Arguments) -> Path:
    """A folder with the first photos of the source, enlarged to the size of the GPU's measurements."""
    photos = folder / "photos"
    photos.mkdir()
    for number, entry in zip(range(arguments.count), find_images(arguments.images), strict=False):
        entry.read().pixels.resize(SIZE).save(photos / f"{number:05d}.jpg", quality=90)
    return photos


def calibrated(photos: Path, folder: Path, arguments: Arguments) -> Row:
    """Seconds of each stage: of an image, a shard, a sample or a block; and those before the first shard."""
    started = time.perf_counter()
    with planned(photos, folder, arguments) as (ray, plan, start):
        plan_s = time.perf_counter() - started - start
        return {
            "what": "stages",
            "workers": arguments.workers,
            "start_s": start,
            "plan_s": plan_s,
            **encoding_stages(ray, plan, arguments),
            "score_s": max(ray.get([ray.remote(timed_score).remote() for _ in range(arguments.workers)])),
            "journal_s": timed_journal(),
            "image_bytes": statistics.mean(Path(one.entry.path).stat().st_size for one in plan.shards[0].inputs),
        }


def encoding_stages(ray: Any, plan: encode.EncodePlan, arguments: Arguments) -> Row:
    actor, decode = ray.remote(num_cpus=1 - encode.DECODE_CPUS)(TimedActor), ray.remote(num_cpus=encode.DECODE_CPUS)
    shards, started = (plan.shards * arguments.workers)[: arguments.workers], time.perf_counter()
    actors = [actor.remote(job_of(arguments), plan.folder, plan.model.fingerprint) for _ in shards]
    ray.get([one.load.remote() for one in actors])
    loaded = time.perf_counter()
    ray.get([decode(encode.decode_shard).remote(plan.model.prepare, shard) for shard in shards])  # imports
    first = time.perf_counter() - loaded
    decoded = ray.get([decode(timed_decode).remote(plan.model.prepare, shard) for shard in shards])
    encoded = ray.get([one.timed.remote(part) for one, (_, part) in zip(actors, decoded, strict=True)])
    shard = ray.put(decoded[0][1])
    sent, _ = timed(lambda: ray.get(actors[0].nothing.remote(decode(copied).remote(shard))), time.perf_counter)
    for one in actors:
        ray.kill(one)
    images, decode_s = len(shards[0].inputs), statistics.mean(seconds for seconds, _ in decoded)
    return {
        "load_s": loaded - started,
        "first_decode_s": max(0.0, first - decode_s),
        "decode_s": decode_s / images,
        "encode_s": statistics.mean(seconds for seconds, _ in encoded) / images,
        "write_s": statistics.mean(seconds for _, seconds in encoded),
        "send_s": sent,
    }


class TimedActor(encode.EncoderActor):
    """An encoding worker that says how long it took."""

    def timed(self, shard: encode.DecodedShard) -> tuple[float, float]:
        import torch

        self.vectors(torch.from_numpy(shard.pixels[:1].copy()))  # the first image of a model takes longer
        encoding, z = timed(lambda: self.vectors(torch.from_numpy(shard.pixels.copy())))
        place = location(self.folder) / f"timed-{os.getpid()}.safetensors"
        return encoding, timed(lambda: write_shard(place, z, shard.rows, self.fingerprint))[0]

    def nothing(self, shard: encode.DecodedShard) -> int:
        """Copy the pixels that came, and do no more."""
        return len(shard.pixels.copy())


def copied(shard: encode.DecodedShard) -> encode.DecodedShard:
    return shard._replace(pixels=shard.pixels.copy())


def timed_decode(prepare: encode.Prepare, shard: encode.Shard) -> tuple[float, encode.DecodedShard]:
    return timed(lambda: encode.decode_shard(prepare, shard))


def timed_score(samples: int = 1024) -> float:
    """Seconds per sample of the recommended detector."""
    labels = label_space(NAMES, NEGATIVES, 512)
    job, z = keyed.StreamJob(SessionSpec(labels, "default")), stream(labels, samples)
    job.run("warm", z[:BLOCK])
    return timed(lambda: job.run("timed", z))[0] / samples


def timed_journal(blocks: int = 20) -> float:
    """Seconds of one block of samples in a journal."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        at = Position.start("timed")
        journal, entry = (
            SqliteJournal(Path(folder) / "journal.sqlite", at),
            JournalEntry(OBSERVE, BLOCK, bytes(BLOCK * 512 * 4)),
        )
        started = time.perf_counter()
        for _ in range(blocks):
            at = journal.append(at, entry)
        return (time.perf_counter() - started) / blocks


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[float, Any]:
    started = clock()
    found = work()
    return clock() - started, found


def local_run(photos: Path, folder: Path, arguments: Arguments) -> Row:
    import torch

    torch.set_num_threads(arguments.workers)
    encoder = load_encoder(arguments.encoder, device="cpu")
    entries, use = find_images(str(photos)), MachineUse()
    done = sum(map(len, encode_images(entries, encoder, FeatureCache(folder, encoder))))
    work = {"running_per_s": done / use.seconds, "processor_s": use.own() / done, "others": use.others()}
    return {"what": "local", "images": done, "seconds": use.seconds} | work


def ray_run(photos: Path, folder: Path, arguments: Arguments, *, kills: bool) -> Row:
    """How long the shards took on a Ray of their own; a worker is killed when a third is done."""
    use, arrived, killed_after = MachineUse(), list[tuple[float, int, float]](), 0
    with planned(photos, folder, arguments) as (ray, plan, _):
        for shard in encode.run(ray, plan, job_of(arguments)):
            arrived.append((use.seconds, shard.encoded, use.own()))
            if kills and not killed_after and len(arrived) >= len(plan.shards) / 3 and kill_actor():
                killed_after = len(arrived)
        (first, _, before), (last, _, after) = arrived[arguments.workers - 1], arrived[-1]
        done = sum(count for _, count, _ in arrived[arguments.workers :])
        return {
            "what": "ray, a worker killed" if kills else "ray",
            "images": plan.total,
            "shard": arguments.shard,
            "actors": arguments.workers,
            "seconds": last,
            "first_s": first,
            "killed_after": killed_after,
            "running_per_s": done / (last - first),
            "processor_s": (after - before) / done,
            "others": use.others(),
        }


class MachineUse:
    """What this process and all that it started took of the machine since now, and what others did."""

    def __init__(self) -> None:
        self._started, self._busy = time.perf_counter(), busy_seconds()
        self._before, self._last = processor_seconds(), dict[int, float]()

    @property
    def seconds(self) -> float:
        """The seconds of a clock."""
        return time.perf_counter() - self._started

    def own(self) -> float:
        """The processor seconds of our processes; one that ended counts with what it had when last asked for."""
        self._last |= processor_seconds()
        return sum(seconds - self._before.get(process, 0.0) for process, seconds in self._last.items())

    def others(self) -> float:
        """How many cores all other processes took on average."""
        return max(0.0, busy_seconds() - self._busy - self.own()) / self.seconds


def busy_seconds() -> float:
    """The time that all processes of the machine had on its processors."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


if __name__ == "__main__":
    main()
