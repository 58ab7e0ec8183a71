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

AHEAD = 2  # chunks that wait at an actor, so that it never waits for us


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
        """Return which encoder this is."""
        return EncoderIdentity(self.encoder.name, self.encoder.fingerprint, text_fingerprint(self.encoder))

    def vectors(self, chunk: WordChunk) -> Float16[Tensor, "n d"]:
        """Return one vector per word."""
        return chunk.encode(self.encoder)

    def names(self, prompt: Prompt, names: Sequence[str]) -> Float[Tensor, "K d"]:
        """Return one vector per known name."""
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
    slots = cluster.cpu_slots(ray)
    count = workers or max(1, int(slots))
    options = {"num_cpus": min(1.0, slots / count), "num_gpus": gpus, "max_restarts": -1, "max_task_retries": -1}
    actor_class = ray.remote(**options)(TextEncoderActor)
    actors = [actor_class.remote(load, torch.get_num_threads()) for _ in range(count)]
    try:
        identity = _same_identity(cluster.fetched(ray, [actor.identity.remote() for actor in actors]))
        chunks = chunk_corpus(spec.corpus, identity, spec.corpus_prompts, cache=cache)
        _encode_missing(ray, actors, chunks, progress)
        anchors = [actors[i % count].names.remote(spec.prompt, list(names)) for i, names in enumerate(spaces.values())]
        ray.wait(anchors, num_returns=len(anchors))
    finally:
        for actor in actors:
            ray.kill(actor)
    yield from _choose_negatives(ray, spaces, anchors, chunks, spec, identity)


def _same_identity(found: Sequence[EncoderIdentity]) -> EncoderIdentity:
    if len(set(found)) > 1:
        raise EncoderError(
            f"expected one encoder on every node, got {sorted({one.text_fingerprint[:8] for one in found})}; "
            "put the same model files on all of them"
        )
    return found[0]


def _encode_missing(ray: Any, actors: Sequence[Any], chunks: Sequence[WordChunk], progress: Progress) -> None:
    """Encode what no earlier run has, a few chunks at a time on every actor, and keep it."""
    waiting = [chunk for chunk in chunks if not chunk.is_cached]
    total = sum(len(chunk.words) for chunk in chunks)
    done = total - sum(len(chunk.words) for chunk in waiting)
    progress(done, total)
    free, running = list(actors) * AHEAD, dict[Any, tuple[Any, WordChunk]]()
    while waiting or running:
        while waiting and free:
            actor, chunk = free.pop(), waiting.pop()
            running[actor.vectors.remote(chunk)] = (actor, chunk)
        for ref in ray.wait(list(running))[0]:
            actor, chunk = running.pop(ref)
            chunk.write(cluster.fetched(ray, ref))
            free.append(actor)
            progress(done := done + len(chunk.words), total)


def _choose_negatives(
    ray: Any,
    spaces: Mapping[str, Sequence[str]],
    anchors: Sequence[Any],
    chunks: Sequence[WordChunk],
    spec: MiningSpec,
    identity: EncoderIdentity,
) -> Iterator[tuple[str, LabelSpace]]:
    task = ray.remote(num_cpus=1, max_retries=-1)(choose_for_names)
    vectors = {chunk.path: ray.put(chunk.read()) for chunk in chunks}
    shared = ray.put((list(chunks), vectors, spec, identity, torch.get_num_threads()))
    chosen = [task.remote(list(names), own, shared) for names, own in zip(spaces.values(), anchors, strict=True)]
    for name, space in zip(spaces, chosen, strict=True):
        yield name, cluster.fetched(ray, space)


def choose_for_names(
    names: Sequence[str],
    anchors: Float[Tensor, "K d"],
    shared: tuple[Iterable[WordChunk], Mapping[Path, Any], MiningSpec, EncoderIdentity, int],
) -> LabelSpace:
    """Return the names with their negatives; runs in a task, where vectors come out of the object store."""
    chunks, vectors, spec, identity, threads = shared
    torch.set_num_threads(threads)
    rows = distinct_rows(chunks, names)
    words = candidates(chunks, rows, partial(_fetch_vectors, vectors))
    return spec.label_space(names, anchors.clone(), words, identity, spec.counts(chunks, rows))


def _fetch_vectors(vectors: Mapping[Path, Any], chunk: WordChunk, rows: Rows) -> Float16[Tensor, "n d"]:
    return cluster.module().get(vectors[chunk.path])[torch.tensor(rows, dtype=torch.long)]
