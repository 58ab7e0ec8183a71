"""Verdicts and groups as fields of a FiftyOne data set, to look at and to sort by."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from unseen.discover import Grouping, Vocabulary, group
from unseen.errors import import_extra
from unseen.images import Image, read_entries
from unseen.images.inputs import in_memory_entry
from unseen.session import Session

BATCH = 32


def from_fiftyone(samples: Iterable[Any]) -> Iterator[str]:
    """Yield the paths of a data set or a view, in its order: what `read_images` and `observe` take."""
    return (sample.filepath for sample in samples)


def apply(samples: Iterable[Any], session: Session, *, field: str = "unseen", learn: bool = True) -> None:
    """Judge every sample in order and write `field` (a Classification), `field_margin` and `field_threshold`.

    The label is the name, or "unknown"; its p_known is the probability that it is known. A sample whose image
    cannot be read has the reason in `field_skipped` instead.
    """
    make = import_extra("fiftyone", "fiftyone").Classification
    rest = iter(samples)
    while some := list(islice(rest, BATCH)):
        (batch,) = read_entries([in_memory_entry(i, path) for i, path in enumerate(from_fiftyone(some))], size=BATCH)
        verdicts = iter((session.observe if learn else session.score)(batch) if batch else ())
        for sample, row in zip(some, batch.rows, strict=True):
            if isinstance(row, Image):
                verdict = next(verdicts)
                sample[field] = make(label=verdict.name or "unknown", p_known=verdict.p_known)
                sample[f"{field}_margin"], sample[f"{field}_threshold"] = verdict.margin, verdict.threshold
            else:
                sample[f"{field}_skipped"] = row.reason
            sample.save()


def apply_groups(
    samples: Iterable[Any], session: Session, vocabulary: Vocabulary | None = None, *, field: str = "unseen"
) -> Grouping:
    """Group the unknown images that a session has kept, and write `field_group` and `field_group_name`.

    Call it after `apply`. The name is the first that `unseen.discover.group` suggests. Samples in no group have None in
    both. The session of what is returned knows the numbers: go on with that one, and they stay.
    """
    found = group(session, vocabulary)
    groups = {key: one for one in found.groups for key in one.keys}
    for sample in samples:
        one = groups.get(sample.filepath)
        sample[f"{field}_group"] = one and one.number
        sample[f"{field}_group_name"] = one.suggestions[0].word if one and one.suggestions else None
        sample.save()
    return found
