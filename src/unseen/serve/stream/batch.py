"""What callers send to a stream, and what they get back."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace
from unseen.detectors.base import UNIT_TOLERANCE, unit
from unseen.errors import FeatureError
from unseen.verdicts import VerdictArray, records


@dataclass(frozen=True)
class SampleBatch:
    """The samples of one request: checked unit features and, perhaps, a key that makes a retry harmless."""

    z: Float[Tensor, "n d"]
    idempotency: bytes | None = None  # hash of the idempotency key
    digest: bytes = b""  # hash of the request's samples, where there is a key
    keys: Sequence[str | None] = ()  # what the caller calls its images; () for none
    thumbnails: Sequence[bytes] = ()

    def __len__(self) -> int:
        return self.z.shape[0]  # many times faster than len of a tensor


class BatchVerdicts(NamedTuple):
    """Verdicts of consecutive samples, numbered from `first` (-1: only scored); `repeated` answers a retry."""

    first: int
    verdicts: VerdictArray
    repeated: bool = False
    text: str = ""  # as JSON, where it is to be sent

    def rows(self, names: Sequence[str], keys: Sequence[str | None] = ()) -> list[dict[str, Any]]:
        """Return verdicts as JSON shows them; samples that were only scored have no number."""
        rows = list(records(self.verdicts, names, keys or [None] * len(self.verdicts)))
        if self.first >= 0:
            for seq, row in enumerate(rows, self.first):
                row["seq"] = seq
        return rows

    def with_text(self, names: Sequence[str], keys: Sequence[str | None] = ()) -> "BatchVerdicts":
        """Return the verdicts with what is sent of them."""
        return self._replace(text=dump_json({"verdicts": self.rows(names, keys), "repeated": self.repeated}))


Work = Callable[[Sequence[SampleBatch]], Sequence[BatchVerdicts | Exception]]


def with_texts(work: Work, names: Sequence[str], batches: Sequence[SampleBatch]) -> list[BatchVerdicts | Exception]:
    """Return the answers to a block with what is sent of them, made by the thread that computed them: it takes as long
    as the rest of a request, and the loop serves everyone."""
    answers = zip(work(batches), batches, strict=True)
    return [one if isinstance(one, Exception) else one.with_text(names, batch.keys) for one, batch in answers]


def dump_json(content: dict[str, Any]) -> str:
    """Return JSON text."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def sample_batch(
    labels: LabelSpace,
    features: Tensor,
    idempotency_key: str | None = None,
    *,
    digest: bytes = b"",
    keys: Sequence[str | None] = (),
    thumbnails: Sequence[bytes] = (),
) -> SampleBatch:
    """Return features as a stream takes them; refuse what no detector could use.

    `digest` is a hash of what was sent, where that is not the features themselves.
    """
    if features.ndim != 2 or features.shape[1] != labels.dim or not len(features):
        raise FeatureError(
            f"expected features of shape [n, {labels.dim}] for this label space, got {list(features.shape)}; "
            "pass a batch of at least one vector from the same encoder"
        )
    z = features.detach().to(labels.id_anchors.dtype)
    if idempotency_key is None:
        return SampleBatch(_nearly_unit(z, labels.id_anchors), keys=keys, thumbnails=thumbnails)
    hashed = hashlib.blake2b(idempotency_key.encode(), digest_size=16).digest()
    digest = digest or hashlib.blake2b(raw_bytes(z), digest_size=16).digest()
    return SampleBatch(_nearly_unit(z, labels.id_anchors), hashed, digest, keys, thumbnails)


def first_of_each_key(batches: Sequence[SampleBatch]) -> list[SampleBatch]:
    """Return the batches without those whose idempotency key came before."""
    first: dict[bytes | int, SampleBatch] = {}
    for batch in batches:
        first.setdefault(id(batch) if batch.idempotency is None else batch.idempotency, batch)
    return list(first.values())


def split_by_batch(verdicts: VerdictArray, batches: Sequence[SampleBatch]) -> list[VerdictArray]:
    """Return the verdicts of each batch of a block."""
    return np.split(verdicts, np.cumsum([len(batch) for batch in batches])[:-1])


def raw_bytes(z: Tensor) -> bytes:
    """Return the numbers of a tensor, row by row."""
    return z.contiguous().cpu().numpy().tobytes()


def _nearly_unit(z: Float[Tensor, "n d"], like: Tensor) -> Float[Tensor, "n d"]:
    """Return features that every detector takes: those well within its bounds as they came, others made unit."""
    numbers = z.numpy()
    squares = np.einsum("nd,nd->n", numbers, numbers)
    if bool((np.abs(squares - 1) < UNIT_TOLERANCE).all()):  # of squares: half as far as is allowed of norms
        return z
    return unit(z, like=like)
