"""Verdicts and groups as fields of a FiftyOne data set, to look at and to sort by."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.discover import Grouping, Vocabulary, group
from unseen.encoders import Encoder, load_encoder
from unseen.errors import LabelError, import_extra
from unseen.features.inputs import as_features
from unseen.images import Image, read_entries
from unseen.images.inputs import in_memory_entry
from unseen.labels import LabelSpace
from unseen.session import Session
from unseen.verdicts import UNKNOWN, Verdict

BATCH = 32


def from_fiftyone(samples: Iterable[Any]) -> Iterator[str]:
    """Yield the paths of a data set or a view, in its order: what `read_images` and `observe` take."""
    return (sample.filepath for sample in samples)


def judge(
    samples: Any,
    names: Sequence[str] = (),
    *,
    state: str | Path | None = None,
    encoder: str | Encoder | None = None,
    field: str = "unseen",
) -> Counter[str]:
    """Judge a data set or a view by names, or by a saved state, which stays as it is; how many have each verdict.

    What the operator of `unseen.integrations.fiftyone_plugin` does; `apply` says which fields are written.
    """
    if bool(names) == bool(state):
        raise LabelError("expected the names that you know or a state file, got both or neither; give one of them")
    saved = Session.load(state) if state else None
    known = encoder or (saved.detector.labels.encoder if saved else "offline")
    model = load_encoder(known) if isinstance(known, str) else known
    session = saved or Session(LabelSpace.build(list(names), model))
    session.detector.labels.check_vectors(model.dim, model.fingerprint, "images")
    session.encoder = model
    return apply(samples, session, field=field, learn=not saved)


def apply(samples: Any, session: Session, *, field: str = "unseen", learn: bool = True) -> Counter[str]:
    """Judge every sample, and write `field` (a Classification), `field_margin`, `field_threshold`; count the verdicts.

    The label is the name, or "unknown"; `verdict` is known, doubtful or unknown, `p_known` the probability that it is
    known, and `likely` the word that an image which is not known may be. All are judged at the end, by everything
    learned; with `learn=False` the session stays as it is. A sample whose image cannot be read has the reason in
    `field_skipped`.
    """
    make = import_extra("fiftyone", "fiftyone").Classification
    since, rows = session.snapshot, list(_rows(samples.values("filepath"), session, learn=learn))
    reasons = [None if isinstance(row, Tensor) else row for row in rows]
    judged: list[Verdict | None] = [None] * len(rows)
    if vectors := [row for row in rows if isinstance(row, Tensor)]:
        z = torch.stack(vectors)
        found = iter(session.rejudge(z, since=since) if learn else session.score(z))
        judged = [next(found) if reason is None else None for reason in reasons]
    labels = [
        one and make(label=one.name or UNKNOWN, verdict=one.verdict, p_known=one.p_known, likely=one.likely)
        for one in judged
    ]
    margins, thresholds = [one and one.margin for one in judged], [one and one.threshold for one in judged]
    columns: dict[str, list[Any]] = {"": labels, "_margin": margins, "_threshold": thresholds, "_skipped": reasons}
    for name, values in columns.items():
        if any(value is not None for value in values) or samples.has_field(field + name):
            samples.set_values(field + name, values, dynamic=True)
    return Counter("skipped" if one is None else one.verdict for one in judged)


def _rows(paths: Sequence[str], session: Session, *, learn: bool) -> Iterator[Tensor | str]:
    """Yield the vector of each image, or why it has none; learn from them as they come."""
    for batch in read_entries([in_memory_entry(i, path) for i, path in enumerate(paths)], size=BATCH):
        z = as_features(batch, session.encoder).z if batch else torch.empty(0)
        if batch and learn:
            session.observe(z, [image.path for image in batch])
        vectors = iter(z)
        yield from (next(vectors) if isinstance(row, Image) else row.reason for row in batch.rows)


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
