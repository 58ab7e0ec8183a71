"""Images to a folder of features on Ray.

The driver divides what is still to be done into shards, each a list of inputs. A shard is one task: it decodes,
encodes and writes as one machine does, with a model that its process loads once, and reports one small row. Ray runs
again what a dead worker or node had; a shard that died too often, as where a picture kills the worker, is given up and
named.

A shard's file has a name that follows from the plan, and appears whole; so a shard that ran twice is one file, and
after a kill the same command finds what is written and plans the rest. Nothing is appended, hence nothing can be lost
or doubled.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unseen.encoders import SplitEncoder, load_encoder
from unseen.errors import DataError, SettingError, first_line
from unseen.features.encoding import encode_ahead, make_reader
from unseen.features.shards import claim_folder, read_shards, write_shard
from unseen.images import Entry, Skipped, find_images
from unseen.images.sources import VIDEO_SUFFIXES
from unseen.scale import cluster
from unseen.storage.remote import Location, location


@dataclass(frozen=True)
class EncodeNumbers:
    """How much is sent out at a time, and how often something is tried again."""

    shard: int = 256  # images per file: half a megabyte of vectors on disk
    retry_waits: tuple[float, float] = (0.5, 2.0)  # seconds before a write is tried again
    max_retries: int = 3  # of a shard whose worker or node died: more deaths than that are no accident
    max_failed_shards: int = 3  # for good, before the run stops: one is an accident, four are a pattern
    per_gpu: int = 8  # models that share a GPU: one process cannot decode as fast as a GPU encodes
    threads: int = 2  # that decode in each process
    ahead: int = 2  # shards sent out for each model, so that none waits for the driver


NUMBERS = EncodeNumbers()


class EncoderInfo(NamedTuple):
    """What the driver must know of an encoder that only the workers load."""

    name: str
    fingerprint: str


class PlacedEntry(NamedTuple):
    """One picture and its place among all inputs of the folder."""

    place: int
    entry: Entry


@dataclass(frozen=True)
class Shard:
    """One unit of work and the file that it becomes."""

    name: str
    inputs: tuple[PlacedEntry, ...]


class ShardResult(NamedTuple):
    """What became of one shard."""

    name: str
    encoded: int
    skipped: tuple[Skipped, ...]
    error: str = ""  # why there is no file


@dataclass(frozen=True)
class EncodePlan:
    """What is still to be done, and how much was there."""

    model: EncoderInfo
    folder: Location
    shards: tuple[Shard, ...]
    already: int

    @property
    def total(self) -> int:
        """How many images are to be encoded."""
        return sum(len(shard.inputs) for shard in self.shards)


class EncodeJob(NamedTuple):
    """How the work is to be done: by which model, on what, in steps of how many."""

    encoder: str
    device: str | None
    batch: int = 64
    actors: int | None = None


def plan(
    ray: Any,
    sources: Sequence[str],
    output: str | Path,
    job: EncodeJob,
    *,
    size: int = NUMBERS.shard,
) -> EncodePlan:
    """The shards that are not yet in the folder; the folder is claimed for the encoder."""
    if any(location(source).suffix.lower() in VIDEO_SUFFIXES for source in sources):
        raise SettingError("expected pictures with --ray, got a video: its frames come one by one; encode it without")
    if _uses_gpus(ray, job):
        cluster.check_gpus(ray)
    entries = list(find_images(list(sources)))
    folder = location(output).absolute()
    model = EncoderInfo(*cluster.fetch_results(ray, ray.remote(_describe_encoder).remote(_absolute_name(job.encoder))))
    claim_folder(folder, model.name, model.fingerprint)
    done = _done_entries(folder)
    missing = [one for one in _place_entries(entries, done) if (one.entry.path, one.entry.identity) not in done]
    started = time.time_ns()  # later runs sort after earlier ones, as their shards replace those of changed files
    parts = [tuple(missing[start : start + size]) for start in range(0, len(missing), size)]
    shards = tuple(Shard(_shard_name(started, number, part, model), part) for number, part in enumerate(parts))
    return EncodePlan(model, folder, shards, len(entries) - len(missing))


def run(ray: Any, plan: EncodePlan, job: EncodeJob) -> Iterator[ShardResult]:
    """Encode the shards of a plan and yield each when its file is there; raise if one could not be done."""
    left = {shard.name: shard for shard in plan.shards}
    reasons: list[str] = []
    for done in _shard_results(ray, plan, job):
        if done.error:
            reasons.append(done.error)
        else:
            left.pop(done.name)
            _check_shared_folder(plan.folder, done)
            yield done
        if len(reasons) > NUMBERS.max_failed_shards:
            break
    if left:
        raise DataError(_undone_message(left.values(), reasons[0]))


def _shard_results(ray: Any, plan: EncodePlan, job: EncodeJob) -> Iterator[ShardResult]:
    gpus = _uses_gpus(ray, job)
    share = {"num_gpus": 1 / NUMBERS.per_gpu, "num_cpus": 0} if gpus else {"num_cpus": 1}
    # without max_calls a process that used a GPU would end after each shard, and its model with it
    task = ray.remote(max_retries=NUMBERS.max_retries, max_calls=0, **share)(encode_shard)
    work = ray.put((job._replace(encoder=_absolute_name(job.encoder)), plan.folder, plan.model.fingerprint))
    most = job.actors or NUMBERS.ahead * _models(ray, gpus=gpus)
    for shard, found in cluster.task_results(ray, lambda shard: task.remote(work, shard), plan.shards, most=most):
        if isinstance(found, Exception):
            reason = f"the workers that tried it died, each time ({first_line(found)})"
            found = ShardResult(shard.name, 0, (), reason)
        yield found


def _check_shared_folder(folder: Location, done: ShardResult) -> None:
    if done.encoded and not (folder / done.name).exists():
        raise DataError(
            f"expected {done.name} in {folder}, where a worker wrote it, got no file: the workers have disks of their "
            "own; pass a folder that all nodes share, or a URI, with -o"
        )


def encode_shard(work: tuple[EncodeJob, Location, str], shard: Shard) -> ShardResult:
    """What became of a shard, whose vectors are one file now; where that failed, the result has the reason."""
    job, folder, fingerprint = work
    model = _loaded(job.encoder, job.device)
    if model.fingerprint != fingerprint:
        what = f"expected the encoder {fingerprint[:8]} on every node, got {model.fingerprint[:8]}"
        raise DataError(f"{what}; put the same model on all of them")
    try:
        entries, places = [one.entry for one in shard.inputs], {one.entry.path: one.place for one in shard.inputs}
        parts = list(encode_ahead(entries, make_reader(model), size=job.batch, workers=NUMBERS.threads))
        rows = [
            {"key": one.path, "identity": one.identity, "label": one.label, "index": places[one.path]}
            for part in parts
            for one in part.new
        ]
        if rows:
            z = torch.cat([part.z for part in parts if part.new])
            _with_retries(partial(write_shard, folder / shard.name, z, rows, fingerprint))
        skipped = tuple(row for part in parts for row in part.rows if isinstance(row, Skipped))
        return ShardResult(shard.name, len(rows), skipped)
    except Exception as error:
        return ShardResult(shard.name, 0, (), str(error) or type(error).__name__)


@cache
def _loaded(encoder: str, device: str | None) -> SplitEncoder:
    """The model of a process, loaded once."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # one process a core: threads of several would only wait for each other
    return load_encoder(encoder, device=device)


def _with_retries(work: Callable[[], None]) -> None:
    """Do what may fail for a moment, as a write to a store does; the last failure is raised."""
    for wait in NUMBERS.retry_waits:
        try:
            return work()
        except OSError:
            time.sleep(wait)
    return work()


def _describe_encoder(encoder: str) -> tuple[str, str]:
    model = load_encoder(encoder, device="cpu")
    return model.name, model.fingerprint


def _absolute_name(encoder: str) -> str:
    """The name of an encoder such that a process in another working folder finds it."""
    return str(Path(encoder).absolute()) if Path(encoder).exists() else encoder


def _done_entries(folder: Location) -> dict[tuple[str, str], int | None]:
    """What is in the folder, as (key, identity), with its place; a damaged shard is an error that names it."""
    return {(row["key"], row["identity"]): row.get("index") for _, rows in read_shards(folder) for row in rows}


def _place_entries(entries: Sequence[Entry], done: dict[tuple[str, str], int | None]) -> Iterator[PlacedEntry]:
    """Yield each entry once, with its place: where the list already began in this folder, else after what is there."""
    places = {key: index for (key, _), index in done.items() if index is not None}
    known = ((places[entry.path], number) for number, entry in enumerate(entries) if entry.path in places)
    index, number = next(known, (max(places.values(), default=-1) + 1, 0))
    seen = set()
    for place, entry in enumerate(entries, start=index - number):
        if entry.path not in seen:
            seen.add(entry.path)
            yield PlacedEntry(place, entry)


def _shard_name(started: int, number: int, inputs: Sequence[PlacedEntry], model: EncoderInfo) -> str:
    rows = [(one.place, one.entry.path, one.entry.identity) for one in inputs]
    digest = hashlib.sha256(json.dumps([model.fingerprint, rows]).encode()).hexdigest()
    return f"{started:020d}-{number:06d}-{digest[:12]}.safetensors"


def _uses_gpus(ray: Any, job: EncodeJob) -> bool:
    return job.device.startswith("cuda") if job.device else ray.cluster_resources().get("GPU", 0) > 0


def _models(ray: Any, *, gpus: bool) -> int:
    """How many models the cluster has room for."""
    return NUMBERS.per_gpu * int(ray.cluster_resources()["GPU"]) if gpus else int(cluster.cpu_slots(ray))


def _undone_message(shards: Iterable[Shard], reason: str) -> str:
    lost = list(shards)
    keys = [one.entry.path for shard in lost for one in shard.inputs]
    return (
        f"expected every shard to be written, got {len(lost)} undone ({len(keys):,} images, {keys[0]} the first): "
        f"{reason}; what is done is kept, the same command tries the rest again"
    )
