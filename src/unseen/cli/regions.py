"""Regions of photos on their way through `detect`: what a detector said beside each verdict, and its file written back.

The class that a detector gives to a box is shown, compared, and handed to nothing that judges.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen import Session
from unseen.cli import output
from unseen.cli.run import Step
from unseen.encoders import Encoder
from unseen.encoders.base import WindowEncoder
from unseen.errors import DataError, EncoderError, SettingError
from unseen.images import Image, read_entries
from unseen.images.boxes import Attributes, BoxFile, read_boxes
from unseen.images.decode import jpeg_thumbnail
from unseen.images.regions import (
    Box,
    Region,
    RegionEntries,
    cut_windows,
    region_entries,
    split_key,
    squeezed,
    window_entries,
    windows,
)
from unseen.report.stream_page import NUMBERS, MarkedPhoto, MarkedRegion, StreamLog
from unseen.storage.files import replacing
from unseen.verdicts import DOUBTFUL, KNOWN, UNKNOWN

MOST_KEPT = 1 << 17  # boxes that are kept beside a state, the latest


@dataclass
class RegionRun:
    """The regions of one run and their verdicts."""

    entries: RegionEntries
    grid: int | None = None  # windows a side, where there is no detector
    file: BoxFile | None = None  # None for windows
    names: Mapping[str, str] = field(default_factory=dict)  # what a photo is called in the file
    target: Path | None = None  # where the file is written back
    keep_known: bool | None = None  # True writes known boxes only, False all but unknown ones, None all
    known_names: frozenset[str] = frozenset()
    records: dict[str, output.Record] = field(default_factory=dict)

    @classmethod
    def of_options(
        cls,
        photos: list[str],
        boxes: Path | None,
        pad: str,
        grid: int | None,
        file: Path | None,
        keep: bool | None,
    ) -> RegionRun | None:
        """The regions that the options ask for, None where they ask for whole photos."""
        try:
            share = float(pad.removesuffix("%")) / (100 if pad.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise SettingError(f"expected --pad from 0% to 100%, got {pad!r}; pass 10%")
        if boxes is not None and grid is not None:
            raise SettingError("expected --boxes or --windows, got both; pass one of them")
        if boxes is None and keep is not None:
            raise SettingError("expected --boxes with --keep-known and --drop-unknown, got none; add --boxes FILE")
        if grid is not None:
            return cls(window_entries(photos, grid), grid)
        if boxes is None:
            return None
        source = read_boxes(boxes)
        target = file if file and is_of_form(file, source) else None
        if keep is not None and target is None:
            raise SettingError(f"expected -o with a place for the boxes, got none; add -o {beside(boxes)}")
        entries, names = region_entries(photos, source.regions, pad=share)
        if rest := len(source.photos) - len(set(names.values())):
            output.warn(f"{rest:,} of {len(source.photos):,} photos in {boxes} are not among these photos")
        return cls(entries, None, source, names, target, keep)

    def steps(self, model: Encoder, session: Session, size: int = 32) -> Iterator[Step]:
        """Yield photos, each as the window with the lowest margin by what the session knows now.

        One pass for all windows of a photo where the encoder has it, else each is encoded as an image.
        """
        shares = [one.box for one in windows(self.grid or 1)]
        for batch in read_entries(self.entries.photos, size=size):
            cut = [cut_windows(image, self.grid or 1) for image in batch]
            self.entries.sizes |= {image.path: image.pixels.size for image in batch}
            if not batch:
                yield Step([(row.path, row.reason) for row in batch.skipped], None)
                continue
            z = window_vectors(model, batch.images, cut, shares)
            lowest = session.score(z.flatten(0, 1)).margin.reshape(len(cut), -1).argmin(1).cpu()
            images = [parts[place] for parts, place in zip(cut, lowest.tolist(), strict=True)]
            keys = iter([image.path for image in images])
            inputs = [(next(keys), None) if isinstance(row, Image) else (row.path, row.reason) for row in batch.rows]
            yield Step(inputs, z[torch.arange(len(cut)), lowest], images)

    def around(self, lines: output.Lines, known: tuple[str, ...]) -> output.Lines:
        """Lines that say of each region what a detector said; `known` are the names of the label space."""
        self.known_names = frozenset(map(_plain, known))

        def verdict(record: output.Record) -> None:
            self.records[record["key"]] = more = {**record, **self.about(record)}
            lines.verdict(more)

        return output.Lines(verdict, lines.skipped)

    def about(self, record: output.Record) -> dict[str, Any]:
        """The photo and the box of a region, and whether the detector agrees on its name, or that it has none."""
        photo, region = self.entries.at(record["key"])
        found: dict[str, Any] = {"photo": photo, "box": [round(one, 1) for one in region.box]}
        if region.label is not None:
            said = _plain(region.label)
            agrees = (said if said in self.known_names else None) == (record["name"] and _plain(record["name"]))
            found |= {"detector": region.label, "detector_score": region.score, "agrees": agrees}
        return found

    def marked(self) -> list[MarkedPhoto]:
        """Photos with their regions, as a report draws them: those with most unknown regions, read again."""
        regions: dict[str, list[MarkedRegion]] = {}
        for one in self.records.values():
            words = output.verdict_line({**one, "key": f"#{split_key(one['key'])[1]}"})
            regions.setdefault(one["photo"], []).append(MarkedRegion(one["box"], one["verdict"], one["nearest"], words))
        order = sorted(regions, key=lambda photo: -sum(one.verdict == UNKNOWN for one in regions[photo]))
        chosen = [self.entries.photos[self.entries.places[photo]] for photo in order[: NUMBERS.photos]]
        images = (image for batch in read_entries(chosen, size=8) for image in batch)
        side = NUMBERS.photo_side
        return [
            MarkedPhoto(one.path, jpeg_thumbnail(one.pixels, side), one.pixels.size, regions[one.path])
            for one in images
        ]

    def finish(self, state: Path | None, log: StreamLog | None) -> None:
        """Write the boxes back, keep them beside the state and for the report; say how often the detector disagrees."""
        if log:
            log.photos = self.marked()
        if self.target and self.file:
            self.file.write(self.target, [self._attributes(row) for row in self._keys()])
            output.say(f"boxes in {self.target}")
        if state:
            keep_boxes(state, {key: self.entries.at(key) for key in self.records})
        if any("agrees" in one for one in self.records.values()):
            others = sum(not one.get("agrees", True) for one in self.records.values())
            output.say(f"the detector disagrees on {others:,} of {len(self.records):,} boxes")

    def _keys(self) -> list[str | None]:
        """The key of each row of the file, None for one on a photo that is not among these."""
        assert self.file
        keys: list[str | None] = [None] * len(self.file.rows)
        for photo, name in self.names.items():
            for number, row in enumerate(self.file.photos[name], 1):
                keys[row] = f"{photo}#{number}"
        return keys

    def _attributes(self, key: str | None) -> Attributes | None:
        record = self.records.get(key or "")
        if record is None:
            return None if self.keep_known else {}
        wanted = {True: (KNOWN,), False: (KNOWN, DOUBTFUL), None: (KNOWN, DOUBTFUL, UNKNOWN)}[self.keep_known]
        return {one: record[one] for one in ("verdict", "name", "p_known")} if record["verdict"] in wanted else None


def window_vectors(
    model: Encoder, photos: Sequence[Image], cut: Sequence[Sequence[Image]], shares: Sequence[Box]
) -> Float[Tensor, "n w d"]:
    """A vector for each window of some photos."""
    if isinstance(model, WindowEncoder):
        with suppress(EncoderError):  # a tower that is none of CLIP's
            return model.windows(photos, shares)
    return model.images([squeezed(part) for parts in cut for part in parts]).cpu().unflatten(0, (len(cut), -1))


def is_of_form(file: Path, boxes: BoxFile) -> bool:
    """Whether a place for output has the form of a file of boxes, so that these are written there, not the lines."""
    return not file.suffix if boxes.path.is_dir() else file.suffix == boxes.path.suffix


def beside(boxes: Path) -> Path:
    """Where judged boxes may lie: `detections.judged.json` for `detections.json`."""
    return boxes.with_name(f"{boxes.stem}.judged{boxes.suffix}" if boxes.is_file() else f"{boxes.name}-judged")


def boxes_file(state: Path) -> Path:
    """Where the boxes of the regions that a state has seen are kept."""
    return state.with_suffix(".boxes.json")


def keep_boxes(state: Path, found: Mapping[str, tuple[str, Region]]) -> None:
    """Keep boxes beside a state, by the key of the region, for what comes after `detect`."""
    rows = {key: [photo, region.box, region.label, region.score] for key, (photo, region) in found.items()}
    kept = {**_read(boxes_file(state)), **rows}
    with replacing(boxes_file(state)) as temporary:
        temporary.write_text(json.dumps(dict(list(kept.items())[-MOST_KEPT:])), encoding="utf-8")


def kept_boxes(state: Path | None) -> dict[str, tuple[str, Region]]:
    """The photo and the region of each key, as far as they lie beside a state."""
    rows = _read(boxes_file(state)) if state else {}
    return {key: (photo, Region(tuple(box), label, score)) for key, (photo, box, label, score) in rows.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise DataError(f"expected boxes in {path}, got {error}; delete it, and run detect again") from error


def _plain(name: str) -> str:
    """A name as detectors and people spell it alike: sports_car, Sports car."""
    return " ".join(name.replace("_", " ").casefold().split())
