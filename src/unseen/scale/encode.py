"""Images to a folder of features on Ray.

The driver divides what is still to be done into shards, each a list of inputs; a shard is decoded by a task on any CPU,
encoded and written by an actor that holds the model, and reported as one small row. Ray Data moves the shards: it
holds decoding back when pixels pile up, restarts what died and runs its shard again. It would do so for ever, also
where a picture kills the worker; so attempts are counted, and a shard that died too often is given up and named.

A shard's file has a name that follows from the plan, and appears whole; so a shard that ran twice is one file, and
after a kill the same command finds what is written and plans the rest. Nothing is appended, hence nothing can be lost
or doubled.
"""

import hashlib
import json
import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.encoders import load_encoder
from unseen.errors import DataError, SettingError, check_choice
from unseen.features.shards import FORMATS, claim_folder, read_shards, write_shard
from unseen.images import Entry, Image, Skipped, find_images, read_entries
from unseen.images.sources import VIDEO_SUFFIXES
from unseen.scale.cluster import fetched, module
from unseen.storage.remote import Location, location

SHARD = 256  # images per file: some 40 MB of pixels on their way, half a megabyte of vectors on disk
RETRY_WAITS = (0.5, 2.0)  # seconds before a write is tried again
MAX_ATTEMPTS = 4  # at one shard: more deaths than that are no accident
MAX_FAILED_SHARDS = 3  # shards that may fail for good before the run stops: one is an accident, four are a pattern
DECODE_CPUS = 0.25  # of a core, beside an actor that has the rest: decoding takes a tenth of a CPU encoder's time

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
        """Return how many images are to be encoded."""
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
    size: int = SHARD,
    form: str = FORMATS[0],
    root: Path | None = None,
) -> EncodePlan:
    """Return the shards that are not yet in the folder; the folder is claimed for the encoder."""
    check_choice("a format", form, FORMATS)
    if any(location(source).suffix.lower() in VIDEO_SUFFIXES for source in sources):
        raise SettingError("expected pictures with --ray, got a video: its frames come one by one; encode it without")
    entries = list(find_images(list(sources), root=root))
    folder = location(output).absolute()
    model = EncoderInfo(*fetched(ray, ray.remote(_describe_encoder).remote(_absolute_name(job.encoder))))
    claim_folder(folder, model.name, model.fingerprint)
    done = _done_entries(folder)
    missing = [one for one in _place_entries(entries, done) if (one.entry.path, one.entry.identity) not in done]
    started = time.time_ns()  # later runs sort after earlier ones, as their shards replace those of changed files
    parts = [tuple(missing[start : start + size]) for start in range(0, len(missing), size)]
    shards = tuple(Shard(_shard_name(started, number, part, model, form), part) for number, part in enumerate(parts))
    return EncodePlan(model, folder, shards, len(entries) - len(missing))


def run(ray: Any, plan: EncodePlan, job: EncodeJob) -> Iterator[ShardResult]:
    """Encode the shards of a plan and yield each when its file is there; raise if one could not be done."""
    if not plan.shards:
        return
    left = {shard.name: shard for shard in plan.shards}
    reasons = []
    counter = ray.remote(_AttemptCounter).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
    attempts = counter.remote(MAX_ATTEMPTS)
    for done in _shard_results(ray, _dataset(ray, plan, job, attempts)):
        if done.error:
            reasons.append(done.error)
        elif left.pop(done.name, None):
            _check_shared_folder(plan.folder, done)
            yield done
        if len(reasons) > MAX_FAILED_SHARDS:
            break
    if left:
        raise DataError(_undone_message(left.values(), (*reasons, "their workers died again and again")[0]))


def _shard_results(ray: Any, flow: Any) -> Iterator[ShardResult]:
    try:
        for row in flow.iter_rows():
            skipped = tuple(Skipped(*one) for one in json.loads(row["skipped"]))
            yield ShardResult(row["name"], row["encoded"], skipped, row["error"])
    except ray.exceptions.RayError as error:  # more than the few broken shards that are let pass
        yield ShardResult("", 0, (), str(error).strip().splitlines()[-1])


def _dataset(ray: Any, plan: EncodePlan, job: EncodeJob, attempts: Any) -> Any:
    _silence_progress(ray)
    gpus = job.device.startswith("cuda") if job.device else ray.cluster_resources().get("GPU", 0) > 0
    actors = min(job.actors or _actors(ray, gpus=gpus), len(plan.shards))
    share: dict[str, float] = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_cpus": 1 - DECODE_CPUS}
    items = [{"name": shard.name, "inputs": pickle.dumps(shard.inputs)} for shard in plan.shards]
    flow = ray.data.from_items(items, override_num_blocks=len(items))
    flow = flow.map(_Decode(plan.model.prepare, attempts), num_cpus=1 if gpus else DECODE_CPUS)
    located = job._replace(encoder=_absolute_name(job.encoder))
    return flow.map(
        _Encode,
        fn_constructor_args=(located, plan.folder, plan.model.fingerprint, attempts),
        compute=ray.data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2),
        **share,
    )


def _check_shared_folder(folder: Location, done: ShardResult) -> None:
    if done.encoded and not (folder / done.name).exists():
        raise DataError(
            f"expected {done.name} in {folder}, where a worker wrote it, got no file: the workers have disks of their "
            "own; pass a folder that all nodes share, or a URI, with -o"
        )


class _AttemptCounter:
    """Count how often each piece of work was begun: Ray begins it again when a worker dies."""

    def __init__(self, limit: int) -> None:
        self.limit, self.begun = limit, Counter[str]()

    def begin(self, work: str) -> bool:
        self.begun[work] += 1
        return self.begun[work] <= self.limit


def _begin_attempt(attempts: Any, work: str) -> None:
    if not module().get(attempts.begin.remote(work)):
        raise DataError("the workers that tried it died, each time; look for a picture that is too large to decode")


def _errors_as_rows(work: Callable[[Any, Any], dict[str, Any]]) -> Callable[[Any, Any], dict[str, Any]]:
    """Return a stage that tells why a shard failed instead of raising, and hands on what failed before."""

    @wraps(work)
    def stage(self: Any, row: dict[str, Any]) -> dict[str, Any]:
        if row.get("error"):
            return {"name": row["name"], "encoded": 0, "skipped": "[]", "error": row["error"]}
        try:
            _begin_attempt(self.attempts, f"{type(self).__name__} {row['name']}")
            return work(self, row) | {"error": ""}
        except Exception as error:
            empty = {"rows": "[]", "pixels": b"", "dtype": "uint8", "shape": "[0]", "encoded": 0, "skipped": "[]"}
            return {"name": row["name"], **empty, "error": str(error) or type(error).__name__}

    return stage


class _Decode:
    """Make the pixels of a shard; what cannot be read is written down."""

    def __init__(self, prepare: Prepare, attempts: Any) -> None:
        self.prepare, self.attempts = prepare, attempts

    @_errors_as_rows
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        inputs: tuple[PlacedEntry, ...] = pickle.loads(row["inputs"])
        (batch,) = read_entries([one.entry for one in inputs], size=len(inputs))
        rows = [
            {"key": image.path, "identity": image.identity, "label": image.label, "index": one.place}
            for one, image in zip(inputs, batch.rows, strict=True)
            if isinstance(image, Image)
        ]
        pixels = self.prepare(batch.images).numpy() if rows else np.empty(0, np.uint8)
        return {
            "name": row["name"],
            "rows": json.dumps(rows),
            "skipped": json.dumps([(one.path, one.reason) for one in batch.skipped]),
            "pixels": pixels.tobytes(),
            "dtype": str(pixels.dtype),
            "shape": json.dumps(pixels.shape),
        }


class _Encode:
    """Hold the model, encode shards, write them."""

    def __init__(self, job: EncodeJob, folder: Location, fingerprint: str, attempts: Any) -> None:
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # one actor a core: threads of several would only wait for each other
        self.model = load_encoder(job.encoder, device=job.device)
        if self.model.fingerprint != fingerprint:
            raise DataError(
                f"expected the encoder {fingerprint[:8]} on every node, got {self.model.fingerprint[:8]}; "
                "put the same model on all of them"
            )
        self.batch, self.folder, self.attempts = job.batch, folder, attempts

    @_errors_as_rows
    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        rows = json.loads(row["rows"])
        if rows:
            array = np.frombuffer(row["pixels"], row["dtype"]).reshape(json.loads(row["shape"]))
            pixels = torch.from_numpy(array.copy())
            z = torch.cat([self.model.vectors(part).cpu() for part in pixels.split(self.batch)])
            _with_retries(partial(write_shard, self.folder / row["name"], z, rows, self.model.fingerprint))
        return {"name": row["name"], "encoded": len(rows), "skipped": row["skipped"]}


def _with_retries(work: Callable[[], None]) -> None:
    """Do what may fail for a moment, as a write to a store does; the last failure is raised."""
    for wait in RETRY_WAITS:
        try:
            return work()
        except OSError:
            time.sleep(wait)
    return work()


def _describe_encoder(encoder: str) -> tuple[str, str, Prepare]:
    model = load_encoder(encoder, device="cpu")
    return model.name, model.fingerprint, model.prepare


def _absolute_name(encoder: str) -> str:
    """Return the name of an encoder such that a process in another working folder finds it."""
    return str(Path(encoder).absolute()) if Path(encoder).exists() else encoder


def _done_entries(folder: Location) -> dict[tuple[str, str], int | None]:
    """Return what is in the folder, as (key, identity), with its place; a damaged shard is an error that names it."""
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


def _shard_name(started: int, number: int, inputs: Sequence[PlacedEntry], model: EncoderInfo, form: str) -> str:
    rows = [(one.place, one.entry.path, one.entry.identity) for one in inputs]
    digest = hashlib.sha256(json.dumps([model.fingerprint, rows]).encode()).hexdigest()
    return f"{started:020d}-{number:06d}-{digest[:12]}.{form}"


def _actors(ray: Any, *, gpus: bool) -> int:
    resources = ray.cluster_resources()
    return max(1, int(resources.get("GPU" if gpus else "CPU", 1)))


def _silence_progress(ray: Any) -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the command has a bar of its own
    context.print_on_execution_start = False
    context.max_errored_blocks = MAX_FAILED_SHARDS
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what it has to say is in our error, the rest in its log


def _undone_message(shards: Any, reason: str) -> str:
    lost = list(shards)
    keys = [one.entry.path for shard in lost for one in shard.inputs]
    return (
        f"expected every shard to be written, got {len(lost)} undone ({len(keys):,} images, {keys[0]} the first): "
        f"{reason}; what is done is kept, the same command tries the rest again"
    )
