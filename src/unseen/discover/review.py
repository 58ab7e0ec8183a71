"""What people say of single images: kept apart from verdicts, for calibration and as examples, never learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.discover.edit import Edited, record_edit
from unseen.errors import DataError
from unseen.session import Session

UNKNOWN = "unknown"  # the word for an image of none of the names


class ReviewedImage(NamedTuple):
    """A kept image with its verdict and the word of a person."""

    key: str
    verdict: str  # known or unknown
    name: str | None  # None for an unknown image
    nearest: str
    margin: float
    group: int  # 0 for none
    user: str | None  # what a person said: a name, or "unknown"; None for nothing

    @property
    def label(self) -> str:
        """The word of a person, or else the verdict: a name, or "unknown"."""
        return self.user or self.name or UNKNOWN


def correct(session: Session, words: Mapping[str, str]) -> Edited:
    """Keep what a person says images show, by key: a name, or "" or "unknown" for none of the names."""
    kept = set(session.reservoir.images.names())
    if not words:
        raise DataError("expected a key and a name for at least one image, got none; write them as CSV: key,name")
    if missing := [key for key in words if key not in kept]:
        raise DataError(
            f"expected keys of kept images, got {len(missing)} others such as {missing[0]!r}; see unseen review"
        )
    said = {key: word.strip() or UNKNOWN for key, word in words.items()}
    return record_edit(session, {"verb": "correct", "corrections": said, "images": len(said)})


def latest_corrections(session: Session) -> dict[str, str]:
    """The latest word of a person on each image, undone ones left out."""
    undone = {one.get("undone") for one in session.reservoir.journal}
    found: dict[str, str] = {}
    for one in session.reservoir.journal:
        if one["verb"] == "correct" and one["edit"] not in undone:
            found |= one["corrections"]
    return found


def reviewed(session: Session) -> list[ReviewedImage]:
    """Every kept image in order of arrival, with its verdict and the word of a person."""
    images, names, words = session.reservoir.images, session.detector.labels.names, latest_corrections(session)
    columns = (images.known, images.label, images.margin, images.group)
    rows = zip(images.names(), *(column.tolist() for column in columns), strict=True)
    found = []
    for key, known, label, margin, group in rows:
        verdict, name = ("known", names[label]) if known else (UNKNOWN, None)
        found.append(ReviewedImage(key, verdict, name, names[label], margin, group, words.get(key)))
    return found


def confirmed_known(session: Session) -> Float[Tensor, "n d"]:
    """The kept images of which a person said that they show a known name: they can calibrate a threshold."""
    known, words = set(session.detector.labels.names), latest_corrections(session)
    images = session.reservoir.images
    rows = torch.tensor([words.get(key) in known for key in images.names()], dtype=torch.bool)
    return images.features[rows]


def coco(rows: Sequence[ReviewedImage]) -> dict[str, Any]:
    """Labels in COCO's format: one annotation per image, for the whole of it."""
    labels = sorted({row.label for row in rows})
    number = {label: place for place, label in enumerate(labels, 1)}
    return {
        "info": {"description": "labels of unseen: a person's word where there is one, else the verdict"},
        "images": [{"id": place, "file_name": row.key} for place, row in enumerate(rows, 1)],
        "annotations": [
            {"id": place, "image_id": place, "category_id": number[row.label]} for place, row in enumerate(rows, 1)
        ],
        "categories": [{"id": place, "name": label} for label, place in number.items()],
    }


def fiftyone(rows: Sequence[ReviewedImage]) -> dict[str, Any]:
    """Labels as `labels.json` of a FiftyOneImageClassificationDataset, by path of the image."""
    classes = sorted({row.label for row in rows})
    return {"classes": classes, "labels": {row.key: classes.index(row.label) for row in rows}}
