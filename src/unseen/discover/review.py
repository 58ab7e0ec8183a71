"""What people say of single images: it teaches the threshold, and never the detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.etree import ElementTree

from unseen.discover.edit import Edited, record_edit
from unseen.errors import DataError
from unseen.images.regions import Region
from unseen.session import Session
from unseen.verdicts import UNKNOWN, verdict_words

EMPTY: Mapping[str, tuple[str, Region]] = {}


class ReviewedImage(NamedTuple):
    """A kept image with its verdict and the word of a person."""

    key: str
    verdict: str  # known, doubtful or unknown
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
    """Tell the threshold what images show, by key: a name, or "" or "unknown" for none of the names."""
    kept = set(session.reservoir.images.names())
    if not words:
        raise DataError("expected a key and a name for at least one image, got none; write them as CSV: key,name")
    if missing := [key for key in words if key not in kept]:
        raise DataError(
            f"expected keys of kept images, got {len(missing)} others such as {missing[0]!r}; see unseen review"
        )
    said = {key: word.strip() or UNKNOWN for key, word in words.items()}
    done = record_edit(session, {"verb": "correct", "corrections": said, "images": len(said)})
    done.session.look_at_told()
    return done


def reviewed(session: Session) -> list[ReviewedImage]:
    """Every kept image in order of arrival, with its verdict and the word of a person."""
    images, names, words = session.reservoir.images, session.detector.labels.names, session.reservoir.corrections
    p_known = session.rule.p_known(session.snapshot.threshold, images.margin)
    verdicts = verdict_words(images.known.numpy(), p_known.numpy())
    columns = (images.label, images.margin, images.group)
    rows = zip(images.names(), verdicts, *(column.tolist() for column in columns), strict=True)
    found = []
    for key, verdict, label, margin, group in rows:
        name = None if verdict == UNKNOWN else names[label]
        found.append(ReviewedImage(key, verdict, name, names[label], margin, group, words.get(key)))
    return found


def coco(rows: Sequence[ReviewedImage], regions: Mapping[str, tuple[str, Region]] = EMPTY) -> dict[str, Any]:
    """Labels in COCO's format: one annotation per image, for the whole of it, or for its box on a photo."""
    labels = sorted({row.label for row in rows})
    number = {label: place for place, label in enumerate(labels, 1)}
    photo = [regions[row.key][0] if row.key in regions else row.key for row in rows]
    photos = {name: place for place, name in enumerate(dict.fromkeys(photo), 1)}
    return {
        "info": {"description": "labels of unseen: a person's word where there is one, else the verdict"},
        "images": [{"id": place, "file_name": name} for name, place in photos.items()],
        "annotations": [
            {"id": place, "image_id": photos[name], "category_id": number[row.label], **_bbox(regions.get(row.key))}
            for place, (row, name) in enumerate(zip(rows, photo, strict=True), 1)
        ],
        "categories": [{"id": place, "name": label} for label, place in number.items()],
    }


def _bbox(found: tuple[str, Region] | None) -> dict[str, Any]:
    if found is None:
        return {}
    left, top, right, bottom = found[1].box
    width, height = right - left, bottom - top
    return {"bbox": [left, top, width, height], "area": width * height, "iscrowd": 0}


def fiftyone(rows: Sequence[ReviewedImage]) -> dict[str, Any]:
    """Labels as `labels.json` of a FiftyOneImageClassificationDataset, by path of the image."""
    classes = sorted({row.label for row in rows})
    return {"classes": classes, "labels": {row.key: classes.index(row.label) for row in rows}}


def label_studio(rows: Sequence[ReviewedImage]) -> list[dict[str, Any]]:
    """Labels as tasks of Label Studio, for a project with Choices `label` of an Image `image` from local files.

    What a person said is an annotation, a verdict is a prediction that waits for one.
    """
    found = []
    for row in rows:
        choice = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [row.label]}}
        kind = {"predictions": [{"model_version": "unseen", "result": [choice]}]}
        said = {"annotations": [{"result": [choice]}]}
        image = f"/data/local-files/?d={quote(row.key)}"
        found.append({"data": {"image": image, "margin": row.margin}, **(said if row.user else kind)})
    return found


def cvat(rows: Sequence[ReviewedImage]) -> str:
    """Labels as tags in CVAT's own XML for images, version 1.1; `source` says whether a person gave them."""
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    for place, row in enumerate(rows):
        image = ElementTree.SubElement(root, "image", id=str(place), name=row.key)
        ElementTree.SubElement(image, "tag", label=row.label, source="manual" if row.user else "auto")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)
