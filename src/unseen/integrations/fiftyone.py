"""Verdicts as fields of a FiftyOne data set, to look at and to sort by."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from unseen.errors import import_extra
from unseen.session import Session

BATCH = 32


def from_fiftyone(samples: Iterable[Any]) -> Iterator[str]:
    """Yield the paths of a data set or a view, in its order: what `read_images` and `observe` take."""
    return (sample.filepath for sample in samples)


def apply(samples: Iterable[Any], session: Session, *, field: str = "unseen", learn: bool = True) -> None:
    """Judge every sample in order and write `field` (a Classification), `field_margin` and `field_threshold`.

    The label is the name, or "unknown"; its confidence is the probability of the verdict itself.
    """
    make = import_extra("fiftyone", "fiftyone").Classification
    rest = iter(samples)
    while batch := list(islice(rest, BATCH)):
        paths = list(from_fiftyone(batch))
        verdicts = session.observe(paths, paths) if learn else session.score(paths)
        for sample, verdict in zip(batch, verdicts, strict=True):
            sample[field] = make(label=verdict.name or "unknown", confidence=verdict.probability)
            sample[f"{field}_margin"], sample[f"{field}_threshold"] = verdict.margin, verdict.threshold
            sample.save()
