"""Mining as map and reduce: actors that load the encoder once turn words into vectors, tasks choose negatives.

Words are divided into the chunks of the local miner and the choice is the local miner's own code, so manifest and
fingerprint are the same to the last bit. Vectors are kept in the same cache, on the machine that asks: words once
encoded, here or on a cluster, are not encoded again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float16
from torch import Tensor

from unseen.errors import EncoderError
from unseen.labels import LabelSpace, MiningSpec, Prompt
from unseen.labels.prompts import TextEncoder, text_fingerprint
from unseen.labels.vectors import Rows, WordChunk, candidates, chunk_corpus, distinct_rows
from unseen.progress import Progress, no_progress
from unseen.scale import cluster
from unseen.scale.pool import ActorPool, WorkerDeath

MAX_RETRIES = 5  # of a choice whose worker or node died


class EncoderIdentity(NamedTuple):
    """Which encoder the actors have loaded."""

    name: str
    fingerprint: str
    text_fingerprint: str


class TextEncoderActor:
    """What runs in an actor: one encoder."""

    def __init__(self, load: Callable[[], TextEncoder], threads: int) -> None:
        # a matrix product rounds by the number of its threads
        torch.set_num_threads(threads)
        self.encoder = load()

    def identity(self) -> EncoderIdentity:
        """Which encoder this is."""
        return EncoderIdentity(self.encoder.name, self.encoder.fingerprint, text_fingerprint(self.encoder))

    def vectors(self, chunk: WordChunk) -> Float16[Tensor, "n d"]:
        """One vector per word."""
        return chunk.encode(self.encoder)

    def names(self, prompt: Prompt, names: Sequence[str]) -> Float[Tensor, "K d"]:
        """One vector per known name."""
        return prompt.encode(names, self.encoder).cpu()


def mine(
    ray: Any,
    spaces: Mapping[str, Sequence[str]],
    load: Callable[[], TextEncoder],
    spec: MiningSpec,
    *,
    workers: int | None = None,
    gpus: float = 0,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Iterator[tuple[str, LabelSpace]]:
    """Yield one label space for each entry of `spaces` (what to call it, and its names), in that order."""
    cluster.check_gpus(ray, gpus)
    slots = cluster.cpu_slots(ray)
    count = workers or max(1, int(slots))
    options = {"num_cpus": min(1.0, slots / count), "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
    actor_class = ray.remote(**options)(TextEncoderActor)
    start = partial(actor_class.remote, load, torch.get_num_threads())
    pool = ActorPool(ray, start, lambda actor: actor.identity.remote(), count)
    try:
        identity = pool.wait_for_one()
        chunks = chunk_corpus(spec.corpus, identity, spec.corpus_prompts, cache=cache)
        _encode_missing(pool, chunks, progress)
        anchors = _encode_names(pool, spaces, spec)
        _check_identity(pool.answers)
    finally:
        pool.stop()
    yield from _choose_negatives(ray, spaces, [ray.put(anchors[name]) for name in spaces], chunks, spec, identity)


def _check_identity(found: Sequence[EncoderIdentity]) -> None:
    if len(set(found)) > 1:
        raise EncoderError(
            f"expected one encoder on every node, got {sorted({one.text_fingerprint[:8] for one in found})}; "
            "put the same model files on all of them"
        )


def _encode_missing(pool: ActorPool, chunks: Sequence[WordChunk], progress: Progress) -> None:
    """Encode what no earlier run has, a few chunks at a time on every actor, and keep it."""
    waiting = {chunk.path: chunk for chunk in chunks if not chunk.is_cached}
    total = sum(len(chunk.words) for chunk in chunks)
    done = total - sum(len(chunk.words) for chunk in waiting.values())
    progress(done, total)
    for path, vectors in pool.results(waiting, lambda actor, path: actor.vectors.remote(waiting[path])):
        _check_identity(pool.answers)
        waiting[path].write(_alive(vectors))
        progress(done := done + len(waiting[path].words), total)


def _encode_names(
    pool: ActorPool, spaces: Mapping[str, Sequence[str]], spec: MiningSpec
) -> dict[str, Float[Tensor, "K d"]]:
    encoded = pool.results(spaces, lambda actor, name: actor.names.remote(spec.prompt, list(spaces[name])))
    return {name: _alive(anchors) for name, anchors in encoded}


def _alive(found: Any) -> Any:
    if isinstance(found, WorkerDeath):
        raise EncoderError(
            f"expected vectors of words, got workers that died each time ({found.reason}); look for a node without "
            "memory for the model; what is encoded is kept"
        )
    return found


def _choose_negatives(
    ray: Any,
    spaces: Mapping[str, Sequence[str]],
    anchors: Sequence[Any],
    chunks: Sequence[WordChunk],
    spec: MiningSpec,
    identity: EncoderIdentity,
) -> Iterator[tuple[str, LabelSpace]]:
    task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(choose_for_names)
    vectors = {chunk.path: ray.put(chunk.read()) for chunk in chunks}
    shared = ray.put((list(chunks), vectors, spec, identity, torch.get_num_threads()))
    chosen = [task.remote(list(names), own, shared) for names, own in zip(spaces.values(), anchors, strict=True)]
    for name, space in zip(spaces, chosen, strict=True):
        yield name, cluster.fetch_results(ray, space)


def choose_for_names(
    names: Sequence[str],
    anchors: Float[Tensor, "K d"],
    shared: tuple[Iterable[WordChunk], Mapping[Path, Any], MiningSpec, EncoderIdentity, int],
) -> LabelSpace:
    """The names with their negatives; runs in a task, where vectors come out of the object store."""
    chunks, vectors, spec, identity, threads = shared
    torch.set_num_threads(threads)
    rows = distinct_rows(chunks, names)
    words = candidates(chunks, rows, partial(_fetch_vectors, vectors))
    return spec.label_space(names, anchors.clone(), words, identity, spec.counts(chunks, rows))


def _fetch_vectors(vectors: Mapping[Path, Any], chunk: WordChunk, rows: Rows) -> Float16[Tensor, "n d"]:
    return cluster.module().get(vectors[chunk.path])[torch.tensor(rows, dtype=torch.long)]
