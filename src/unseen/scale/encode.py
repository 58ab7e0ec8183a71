"""Images to a folder of features on Ray.

The driver divides what is still to be done into shards, each a list of inputs; a shard is decoded by a task on any CPU,
encoded and written by an actor that holds the model, and reported as one small row. A few shards wait at every actor,
so that pixels do not pile up; beside GPUs one more for each core, so that all cores decode. What a dead worker or node
had is done again by another; a shard that died too often, as where a picture kills the worker, is given up and named.

A shard's file has a name that follows from the plan, and appears whole; so a shard that ran twice is one file, and
after a kill the same command finds what is written and plans the rest. Nothing is appended, hence nothing can be lost
or doubled.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders import load_encoder
from unseen.errors import DataError, SettingError
from unseen.features.shards import claim_folder, read_shards, write_shard
from unseen.images import Entry, Image, Skipped, find_images, read_entries
from unseen.images.sources import VIDEO_SUFFIXES
from unseen.scale import cluster
from unseen.scale.pool import ActorPool, WorkerDeath
from unseen.storage.remote import Location, location


@dataclass(frozen=True)
class EncodeNumbers:
    """How much is sent out at a time, and how often something is tried again."""

    shard: int = 256  # images per file: some 40 MB of pixels on their way, half a megabyte of vectors on disk
    retry_waits: tuple[float, float] = (0.5, 2.0)  # seconds before a write is tried again
    max_failed_shards: int = 3  # for good, before the run stops: one is an accident, four are a pattern
    decode_cpus: float = 0.25  # of a core: decoding takes a tenth of a CPU encoder's time


NUMBERS = EncodeNumbers()


Prepare = Callable[[Sequence[Image]], Tensor]


class EncoderInfo(NamedTuple):
    """What the driver must know of an encoder that only the workers load."""

    name: str
    fingerprint: str
    prepare: Prepare


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
    root: Path | None = None,
) -> EncodePlan:
    """The shards that are not yet in the folder; the folder is claimed for the encoder."""
    if any(location(source).suffix.lower() in VIDEO_SUFFIXES for source in sources):
        raise SettingError("expected pictures with --ray, got a video: its frames come one by one; encode it without")
    if _uses_gpus(ray, job):
        cluster.check_gpus(ray)
    entries = list(find_images(list(sources), root=root))
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
    if not plan.shards:
        return
    left = {shard.name: shard for shard in plan.shards}
    reasons = []
    for done in _shard_results(ray, plan, job):
        if done.error:
            reasons.append(done.error)
        elif left.pop(done.name, None):
            _check_shared_folder(plan.folder, done)
            yield done
        if len(reasons) > NUMBERS.max_failed_shards:
            break
    if left:
        raise DataError(_undone_message(left.values(), reasons[0]))


def _shard_results(ray: Any, plan: EncodePlan, job: EncodeJob) -> Iterator[ShardResult]:
    gpus = _uses_gpus(ray, job)
    # beside a GPU all cores decode: models that held them would wait for pixels that nobody could make
    share = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": 1 - NUMBERS.decode_cpus}
    actor = ray.remote(max_restarts=0, max_task_retries=0, **share)(EncoderActor)
    located = job._replace(encoder=_absolute_name(job.encoder))
    decode = ray.remote(max_retries=0, num_cpus=1 if gpus else NUMBERS.decode_cpus)(decode_shard)
    prepare, shards = ray.put(plan.model.prepare), {shard.name: shard for shard in plan.shards}
    ahead = int(cluster.cpu_slots(ray)) if gpus else 0
    decoded = DecodedAhead(lambda name: decode.remote(prepare, shards[name]), shards, ahead)

    def submit(actor: Any, name: str) -> Any:
        return actor.encode.remote(decoded.take(name))

    count = min(job.actors or _actors(ray, gpus=gpus), len(plan.shards))
    start = partial(actor.remote, located, plan.folder, plan.model.fingerprint)
    workers = ActorPool(ray, start, lambda actor: actor.load.remote(), count)
    try:
        for name, found in workers.results(shards, submit):
            if isinstance(found, WorkerDeath):
                found = ShardResult(name, 0, (), f"the workers that tried it died, each time ({found.reason})")
            yield found
    finally:
        workers.stop()


def _check_shared_folder(folder: Location, done: ShardResult) -> None:
    if done.encoded and not (folder / done.name).exists():
        raise DataError(
            f"expected {done.name} in {folder}, where a worker wrote it, got no file: the workers have disks of their "
            "own; pass a folder that all nodes share, or a URI, with -o"
        )


class DecodedShard(NamedTuple):
    """The pixels of a shard, what is known of each picture, and what could not be read."""

    name: str
    rows: list[dict[str, Any]]
    skipped: tuple[Skipped, ...]
    pixels: np.ndarray[Any, Any]
    error: str = ""


class DecodedAhead:
    """Shards on their way to pixels, begun in order: `ahead` of them before an actor has room.

    An actor on a GPU takes pixels faster than a core makes them: with only its own shards begun, most cores would wait.
    """

    def __init__(self, decode: Callable[[str], Any], names: Iterable[str], ahead: int) -> None:
        self._decode, self._names, self._ahead = decode, iter(names), ahead
        self._begun: dict[str, Any] = {}

    def take(self, name: str) -> Any:
        """One, and begin those that come next; one that was taken before is decoded anew."""
        for other in islice(self._names, 1 + self._ahead - len(self._begun)):
            self._begun[other] = self._decode(other)
        return self._begun.pop(name) if name in self._begun else self._decode(name)


def decode_shard(prepare: Prepare, shard: Shard) -> DecodedShard:
    """The pixels of a shard; runs in a task."""
    try:
        (batch,) = read_entries([one.entry for one in shard.inputs], size=len(shard.inputs))
        rows = [
            {"key": image.path, "identity": image.identity, "label": image.label, "index": one.place}
            for one, image in zip(shard.inputs, batch.rows, strict=True)
            if isinstance(image, Image)
        ]
        pixels = prepare(batch.images).numpy() if rows else np.empty(0, np.uint8)
        return DecodedShard(shard.name, rows, tuple(batch.skipped), pixels)
    except Exception as error:
        return DecodedShard(shard.name, [], (), np.empty(0, np.uint8), str(error) or type(error).__name__)


class EncoderActor:
    """What runs in an actor: one model, which encodes shards and writes them."""

    def __init__(self, job: EncodeJob, folder: Location, fingerprint: str) -> None:
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # one actor a core: threads of several would only wait for each other
        self.job, self.folder, self.fingerprint, self.batch = job, folder, fingerprint, job.batch

    def load(self) -> None:
        """Load the model; it must be that of the driver."""
        self.model = load_encoder(self.job.encoder, device=self.job.device)
        if self.model.fingerprint != self.fingerprint:
            what = f"expected the encoder {self.fingerprint[:8]} on every node, got {self.model.fingerprint[:8]}"
            raise DataError(f"{what}; put the same model on all of them")

    def encode(self, shard: DecodedShard) -> ShardResult:
        """Write the vectors of a shard as one file; where that fails, the result has the reason."""
        try:
            if shard.rows:
                z = self.vectors(torch.from_numpy(shard.pixels.copy()))
                _with_retries(partial(write_shard, self.folder / shard.name, z, shard.rows, self.fingerprint))
            return ShardResult(shard.name, len(shard.rows), shard.skipped, shard.error)
        except Exception as error:
            return ShardResult(shard.name, 0, (), str(error) or type(error).__name__)

    def vectors(self, pixels: Tensor) -> Float[Tensor, "n d"]:
        """One vector per image; a batch that does not fit in the memory of a GPU is halved, and stays so."""
        while True:
            try:
                return torch.cat([self.model.vectors(part).cpu() for part in pixels.split(self.batch)])
            except torch.OutOfMemoryError:
                if self.batch == 1:
                    raise
                self.batch //= 2


def _with_retries(work: Callable[[], None]) -> None:
    """Do what may fail for a moment, as a write to a store does; the last failure is raised."""
    for wait in NUMBERS.retry_waits:
        try:
            return work()
        except OSError:
            time.sleep(wait)
    return work()


def _describe_encoder(encoder: str) -> tuple[str, str, Prepare]:
    model = load_encoder(encoder, device="cpu")
    return model.name, model.fingerprint, model.prepare


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


def _actors(ray: Any, *, gpus: bool) -> int:
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU" if gpus else "CPU", 1)))


def _undone_message(shards: Any, reason: str) -> str:
    lost = list(shards)
    keys = [one.entry.path for shard in lost for one in shard.inputs]
    return (
        f"expected every shard to be written, got {len(lost)} undone ({len(keys):,} images, {keys[0]} the first): "
        f"{reason}; what is done is kept, the same command tries the rest again"
    )
