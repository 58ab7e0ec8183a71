"""What callers send to a stream, and what they get back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace
from unseen.detectors.base import UNIT_TOLERANCE, unit
from unseen.errors import FeatureError
from unseen.verdicts import VerdictArray, Verdicts, records


@dataclass(frozen=True)
class SampleBatch:
    """The samples of one request in the dtype of their label space and, perhaps, a key that makes a retry harmless."""

    z: Float[np.ndarray, "n d"]
    idempotency: bytes | None = None  # hash of the idempotency key
    digest: bytes = b""  # hash of the request's samples, where there is a key
    keys: Sequence[str | None] = ()  # what the caller calls its images; () for none
    thumbnails: Sequence[bytes] = ()
    skipped: Sequence[dict[str, object]] = ()  # images of the request that could not be read

    def __len__(self) -> int:
        return len(self.z)


@dataclass(frozen=True)
class BatchVerdicts:
    """Verdicts of consecutive samples, numbered from `first` (-1: only scored); `repeated` answers a retry."""

    first: int
    verdicts: VerdictArray
    names: Sequence[str]  # that the samples were judged by
    negatives: Sequence[str]  # the same
    repeated: bool = False
    text: str = ""  # as JSON, where it is to be sent

    @classmethod
    def of(cls, first: int, verdicts: Verdicts) -> BatchVerdicts:
        """What a session says of samples, numbered from `first`."""
        return cls(first, verdicts.structured(), verdicts.names, verdicts.negatives)

    @property
    def after(self) -> int:
        """The number of the next sample."""
        return self.first + len(self)

    def __len__(self) -> int:
        return len(self.verdicts)

    def part(self, seq: int, count: int | None = None) -> BatchVerdicts:
        """The verdicts from number `seq` on, `count` of them or all."""
        start = max(0, seq - self.first)
        stop = None if count is None else start + count
        return self.between(start, stop)

    def between(self, start: int, stop: int | None) -> BatchVerdicts:
        """The verdicts in the places from `start` to before `stop`; what has no number gets none."""
        first = self.first + start if self.first >= 0 else -1
        return replace(self, first=first, verdicts=self.verdicts[start:stop])

    def rows(self, keys: Sequence[str | None] = ()) -> list[dict[str, Any]]:
        """Verdicts as the command line prints them; samples that were only scored have no number."""
        rows = list(records(self.verdicts, self.names, self.negatives, keys or [None] * len(self.verdicts)))
        if self.first >= 0:
            for seq, row in enumerate(rows, self.first):
                row["seq"] = seq
        return rows


Work = Callable[[Sequence[SampleBatch]], Sequence[BatchVerdicts | Exception]]
dump_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def with_texts(work: Work, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
    """The answers to a block with what is sent of them, made by the thread that computed them: it takes as long
    as the rest of a request, and the loop serves everyone."""
    answers = list(work(batches))
    for place, (answer, batch) in enumerate(zip(answers, batches, strict=True)):
        if not isinstance(answer, Exception):
            content: dict[str, Any] = {"verdicts": answer.rows(batch.keys), "repeated": answer.repeated}
            content |= {"skipped": batch.skipped} if batch.skipped else {}
            content |= {"pictured": True} if batch.thumbnails else {}
            answers[place] = replace(answer, text=dump_json(content))
    return answers


def sample_batch(
    labels: LabelSpace, features: Float[np.ndarray, "n d"] | Tensor, idempotency_key: str | None = None, **more: Any
) -> SampleBatch:
    """Features as a stream takes them, with what else came; refuse what has another shape or cannot be made unit.

    `digest` is a hash of what was sent, where that is not the features themselves.
    """
    if features.ndim != 2 or features.shape[1] != labels.dim or not features.shape[0]:
        raise FeatureError(
            f"expected features of shape [n, {labels.dim}] for this label space, got {list(features.shape)}; "
            "pass a batch of at least one vector from the same encoder"
        )
    numbers = features.detach().numpy() if isinstance(features, Tensor) else features
    with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are refused
        z = numbers.astype(labels.id_anchors.numpy().dtype, copy=False)
        far = np.abs(np.einsum("nd,nd->n", z, z) - 1)  # of squares: half as far as is allowed of norms
        if not (far < UNIT_TOLERANCE).all():
            z = unit(torch.from_numpy(z.copy()), like=labels.id_anchors).numpy()
    if idempotency_key is not None:
        more["idempotency"] = hashlib.blake2b(idempotency_key.encode(), digest_size=16).digest()
        more["digest"] = more.get("digest") or hashlib.blake2b(z.tobytes(), digest_size=16).digest()
    return SampleBatch(z, **more)


def joined(batches: Sequence[SampleBatch]) -> Float[Tensor, "n d"]:
    """The samples of a block, in torch's own memory: norms and products round by its alignment."""
    return torch.from_numpy(np.concatenate([batch.z for batch in batches])).clone()


def split_by_batch(block: BatchVerdicts, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
    """The verdicts of a block for each of its batches; of samples that were only scored none has a number."""
    return [block.between(*ends) for ends in pairwise(accumulate(map(len, batches), initial=0))]
