"""What callers send to a stream, and what they get back."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace
from unseen.detectors.base import UNIT_TOLERANCE, unit
from unseen.errors import FeatureError, ServiceError
from unseen.serve.stream.receipts import Receipt
from unseen.verdicts import VerdictArray, records


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

    def without(self, skipped: Sequence[dict[str, object]]) -> "SampleBatch":
        """The samples beside images that were skipped."""
        return replace(self, skipped=skipped)


class BatchVerdicts(NamedTuple):
    """Verdicts of consecutive samples, numbered from `first` (-1: only scored); `repeated` answers a retry."""

    first: int
    verdicts: VerdictArray
    names: Sequence[str]  # that the samples were judged by
    repeated: bool = False
    text: str = ""  # as JSON, where it is to be sent

    def rows(self, keys: Sequence[str | None] = ()) -> list[dict[str, Any]]:
        """Verdicts as JSON shows them; samples that were only scored have no number."""
        rows = list(records(self.verdicts, self.names, keys or [None] * len(self.verdicts)))
        if self.first >= 0:
            for seq, row in enumerate(rows, self.first):
                row["seq"] = seq
        return rows

    def with_text(self, batch: SampleBatch) -> "BatchVerdicts":
        """The verdicts with what is sent of them."""
        content: dict[str, Any] = {"verdicts": self.rows(batch.keys), "repeated": self.repeated}
        if batch.skipped:
            content["skipped"] = batch.skipped
        if batch.thumbnails:
            content["pictured"] = True
        return self._replace(text=dump_json(content))


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
Work = Callable[[Sequence[SampleBatch]], Sequence[BatchVerdicts | Exception]]


def with_texts(work: Work, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
    """The answers to a block with what is sent of them, made by the thread that computed them: it takes as long
    as the rest of a request, and the loop serves everyone."""
    answers = zip(work(batches), batches, strict=True)
    return [one if isinstance(one, Exception) else one.with_text(batch) for one, batch in answers]


def dump_json(content: dict[str, Any]) -> str:
    """JSON text."""
    return ENCODER.encode(content)


def sample_batch(
    labels: LabelSpace,
    features: Float[np.ndarray, "n d"] | Tensor,
    idempotency_key: str | None = None,
    *,
    digest: bytes = b"",
    keys: Sequence[str | None] = (),
    thumbnails: Sequence[bytes] = (),
) -> SampleBatch:
    """Features as a stream takes them; refuse what has another shape.

    `digest` is a hash of what was sent, where that is not the features themselves.
    """
    if features.ndim != 2 or features.shape[1] != labels.dim or not features.shape[0]:
        raise FeatureError(
            f"expected features of shape [n, {labels.dim}] for this label space, got {list(features.shape)}; "
            "pass a batch of at least one vector from the same encoder"
        )
    numbers = features.detach().numpy() if isinstance(features, Tensor) else features
    z = numbers if numbers.dtype == np.float32 and labels.id_anchors.dtype == torch.float32 else _cast(numbers, labels)
    if idempotency_key is None:
        return SampleBatch(z, keys=keys, thumbnails=thumbnails)
    hashed = hashlib.blake2b(idempotency_key.encode(), digest_size=16).digest()
    digest = digest or hashlib.blake2b(z.tobytes(), digest_size=16).digest()
    return SampleBatch(z, hashed, digest, keys, thumbnails)


def _cast(numbers: Float[np.ndarray, "n d"], labels: LabelSpace) -> Float[np.ndarray, "n d"]:
    with np.errstate(over="ignore"):  # infinity is refused later
        return numbers.astype(labels.id_anchors.numpy().dtype)


def answer_unit(work: Work, like: Tensor, batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
    """The answers of `work` to the batches whose rows are unit or can be made so, and why others are refused."""
    if _are_nearly_unit(np.concatenate([batch.z for batch in batches])):
        return list(work(batches))
    checked = [_as_unit(batch, like) for batch in batches]
    good = [one for one in checked if isinstance(one, SampleBatch)]
    answers = iter(work(good) if good else ())
    return [next(answers) if isinstance(one, SampleBatch) else one for one in checked]


def joined(batches: Sequence[SampleBatch]) -> Float[Tensor, "n d"]:
    """The samples of a block, in torch's own memory: norms and products round by its alignment."""
    return torch.from_numpy(np.concatenate([batch.z for batch in batches])).clone()


def first_of_each_key(batches: Sequence[SampleBatch]) -> list[SampleBatch]:
    """The batches without those whose idempotency key came before."""
    first: dict[bytes | int, SampleBatch] = {}
    for batch in batches:
        first.setdefault(id(batch) if batch.idempotency is None else batch.idempotency, batch)
    return list(first.values())


def split_by_batch(verdicts: VerdictArray, batches: Sequence[SampleBatch]) -> list[VerdictArray]:
    """The verdicts of each batch of a block."""
    return np.split(verdicts, np.cumsum([len(batch) for batch in batches])[:-1])


def numbered_answers(block: BatchVerdicts, batches: Sequence[SampleBatch]) -> list[BatchVerdicts]:
    """The verdicts of a block for each of its batches."""
    parts = split_by_batch(block.verdicts, batches)
    firsts = accumulate(map(len, parts), initial=block.first)
    return [BatchVerdicts(first, own, block.names) for first, own in zip(firsts, parts, strict=False)]


def unanswered_receipts(batches: Sequence[SampleBatch], first: int) -> list[Receipt]:
    """The receipts of a block's batches that have a key, before they are computed."""
    firsts = accumulate(map(len, batches), initial=first)
    return [
        Receipt.unanswered(batch.idempotency, batch.digest, at, len(batch))
        for batch, at in zip(batches, firsts, strict=False)
        if batch.idempotency is not None
    ]


def raw_bytes(z: Tensor) -> bytes:
    """The numbers of a tensor, row by row."""
    return z.contiguous().cpu().numpy().tobytes()


def _are_nearly_unit(z: Float[np.ndarray, "n d"]) -> bool:
    """Whether every row is well within the bounds of a detector."""
    squares = np.einsum("nd,nd->n", z, z)
    return bool((np.abs(squares - 1) < UNIT_TOLERANCE).all())  # of squares: half as far as is allowed of norms


def _as_unit(batch: SampleBatch, like: Tensor) -> SampleBatch | FeatureError:
    """A batch that every detector takes: one well within its bounds as it came, another made unit."""
    if _are_nearly_unit(batch.z):
        return batch
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are refused
            return replace(batch, z=unit(torch.from_numpy(batch.z.copy()), like=like).numpy())
    except FeatureError as error:
        return error


def key_used_twice() -> ServiceError:
    """The error for a key that came twice at once."""
    return ServiceError(409, "expected an idempotency key used once at a time, got it twice at once; try again")
