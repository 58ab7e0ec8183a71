"""Files of boxes as detectors and annotation tools write them: read, and written back with what was decided.

COCO JSON (whole, or the list of results), YOLO's text files with `data.yaml`, Pascal VOC's XML, CSV. What is written
back is the file as it was, with `verdict`, `name` and `p_known` beside each box, less the boxes that were dropped.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from unseen.errors import DataError, import_extra
from unseen.images.regions import Box, Region
from unseen.storage.csv_cells import as_text_cell
from unseen.storage.files import replacing

Attributes = Mapping[str, Any]  # verdict, name, p_known; empty for a box that was not judged
PHOTO_COLUMNS = ("photo", "file_name", "filename", "file", "image", "path", "key", "image_path", "image_id")
CORNER_COLUMNS = (("left", "top", "right", "bottom"), ("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))
SIZE_COLUMNS = (("x", "y", "width", "height"), ("x", "y", "w", "h"), ("left", "top", "width", "height"))
LABEL_COLUMNS = ("label", "class", "class_name", "category", "name")
SCORE_COLUMNS = ("score", "confidence", "conf")
PLACE_OF_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
VERDICT_COLUMNS = {"verdict": "verdict", "name": "verdict_name", "p_known": "p_known"}  # where `name` is the class


@dataclass(frozen=True)
class BoxFile(ABC):
    """A file or folder of boxes; `rows` has the photo and the region of each, in the order of the file."""

    path: Path

    @cached_property
    @abstractmethod
    def rows(self) -> list[tuple[str, Region]]:
        """The name of the photo and the region of each box."""

    @abstractmethod
    def write(self, target: Path, attributes: Sequence[Attributes | None]) -> None:
        """Write the boxes with what was decided about each; None leaves a box out."""

    @cached_property
    def photos(self) -> dict[str, list[int]]:
        """The rows of each photo."""
        found: dict[str, list[int]] = {}
        for row, (photo, _) in enumerate(self.rows):
            found.setdefault(photo, []).append(row)
        return found

    @property
    def root(self) -> Path:
        """The folder of the files."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def regions(self) -> dict[str, list[Region]]:
        """The regions of each photo, in the order of the file."""
        return {photo: [self.rows[row][1] for row in rows] for photo, rows in self.photos.items()}


def read_boxes(path: str | Path) -> BoxFile:
    """The boxes of a file or folder; its name, or what lies in it, says how they are written."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"expected a file or folder of boxes, got nothing at {path}; check the path")
    forms: dict[str, type[BoxFile]] = {".json": Coco, ".csv": Table, ".xml": PascalVoc, ".txt": Yolo, ".yaml": Yolo}
    suffixes = {one.suffix for one in path.rglob("*")} if path.is_dir() else {path.suffix.lower()}
    form = next((forms[one] for one in (".xml", ".txt", *forms) if one in suffixes), None)
    if form is None or (path.is_dir() and form in (Coco, Table)):
        raise DataError(
            f"expected boxes as COCO .json, .csv, or a folder of YOLO .txt or VOC .xml, got {path}; pass one of these"
        )
    made = form(path.parent if path.suffix in (".yaml", ".yml") else path)
    if not made.rows:
        raise DataError(f"expected at least one box, got none in {path}; pass the file that the detector wrote")
    return made


class Coco(BoxFile):
    """COCO: `images`, `annotations` and `categories`, or the list of results with `image_id` alone."""

    @cached_property
    def data(self) -> Any:
        """What is in the file."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(f"expected COCO's JSON in {self.path}, got {error}; export it again") from error

    @property
    def annotations(self) -> list[dict[str, Any]]:
        """The boxes as they stand there."""
        found = self.data.get("annotations") if isinstance(self.data, dict) else self.data
        if not isinstance(found, list):
            raise DataError(f"expected 'annotations' or a list of results in {self.path}, got none; export it as COCO")
        return found

    @cached_property
    def rows(self) -> list[tuple[str, Region]]:
        """The name of the photo and the region of each box; a number for a name has the twelve digits of COCO's."""
        whole = self.data if isinstance(self.data, dict) else {}
        files = {one["id"]: one["file_name"] for one in whole.get("images", ())}
        names = {one["id"]: one["name"] for one in whole.get("categories", ())}
        found = []
        for place, one in enumerate(self.annotations):
            try:
                image, (x, y, width, height) = one["image_id"], map(float, one["bbox"])
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"expected image_id and bbox, got {one} as box {place} of {self.path}") from error
            file = one.get("file_name") or files.get(image) or (f"{image:012d}" if isinstance(image, int) else image)
            box = (x, y, x + width, y + height)
            found.append((str(file), Region(box, names.get(one.get("category_id")), one.get("score"))))
        return found

    def write(self, target: Path, attributes: Sequence[Attributes | None]) -> None:
        """Write the file; what was decided stands under `attributes`, where CVAT and FiftyOne look for it."""
        kept = [
            one | ({"attributes": {**one.get("attributes", {}), **more}} if more else {})
            for one, more in zip(self.annotations, attributes, strict=True)
            if more is not None
        ]
        with replacing(target) as temporary:
            text = json.dumps({**self.data, "annotations": kept} if isinstance(self.data, dict) else kept)
            temporary.write_text(text, encoding="utf-8")


class Table(BoxFile):
    """CSV with a column for the photo, four for the box, and perhaps one each for class and score."""

    @cached_property
    def table(self) -> list[dict[str, str]]:
        """The rows by their columns."""
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))

    @cached_property
    def rows(self) -> list[tuple[str, Region]]:
        """The name of the photo and the region of each row."""
        head = list(self.table[0]) if self.table else []
        photo, label, score = (_first(names, head) for names in (PHOTO_COLUMNS, LABEL_COLUMNS, SCORE_COLUMNS))
        places = next((one for one in (*CORNER_COLUMNS, *SIZE_COLUMNS) if set(one) <= set(head)), None)
        if photo is None or places is None:
            raise DataError(
                f"expected columns photo, left, top, right, bottom (or x, y, width, height) in {self.path}, got "
                f"{', '.join(head)}; rename them"
            )
        found = []
        for line, row in enumerate(self.table, 2):
            x, y, x2, y2 = _numbers([row[one] for one in places], f"line {line} of {self.path}")
            box = (x, y, x + x2, y + y2) if places in SIZE_COLUMNS else (x, y, x2, y2)
            sure = float(row[score]) if score and row[score] else None
            found.append((row[photo], Region(box, (row[label] or None) if label else None, sure)))
        return found

    def write(self, target: Path, attributes: Sequence[Attributes | None]) -> None:
        """Write the table with three more columns."""
        with replacing(target) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*self.table[0], *VERDICT_COLUMNS.values()])
            writer.writeheader()
            for row, more in zip(self.table, attributes, strict=True):
                if more is not None:
                    writer.writerow(row | {VERDICT_COLUMNS[one]: as_text_cell(value) for one, value in more.items()})


class Yolo(BoxFile):
    """YOLO: a text file per photo with a line per box, in shares; polygons count by their extent."""

    @cached_property
    def files(self) -> list[Path]:
        """The text files, those of names left out."""
        if self.path.is_file():
            return [self.path]
        return [one for one in sorted(self.path.rglob("*.txt")) if one.name not in PLACE_OF_NAMES]

    @cached_property
    def names(self) -> Mapping[int, str]:
        """The classes by number, from data.yaml or classes.txt in the folder or up to two above."""
        folders = [self.path, *self.path.parents[:2]]
        place = next((folder / one for folder in folders for one in PLACE_OF_NAMES if (folder / one).is_file()), None)
        if place is None:
            return {}
        if place.suffix not in (".yaml", ".yml"):
            return dict(enumerate(place.read_text(encoding="utf-8").split("\n")))
        found = import_extra("yaml", "encode").safe_load(place.read_text(encoding="utf-8")) or {}
        names = found.get("names", {})
        return names if isinstance(names, dict) else dict(enumerate(names))

    @cached_property
    def lines(self) -> list[tuple[Path, str]]:
        """The lines of all files, each with its file."""
        read = ((file, line) for file in self.files for line in file.read_text(encoding="utf-8").splitlines())
        return [(file, line) for file, line in read if line.strip()]

    @cached_property
    def rows(self) -> list[tuple[str, Region]]:
        """The name of the photo, which has no suffix, and the region of each line."""
        found = []
        for file, line in self.lines:
            number, *values = _numbers(line.split(), f"{line!r} of {file}", least=5)
            box, score = _yolo_box(values)
            photo = file.relative_to(self.root).with_suffix("").as_posix()
            found.append((photo, Region(box, self.names.get(int(number)), score, in_shares=True)))
        return found

    def write(self, target: Path, attributes: Sequence[Attributes | None]) -> None:
        """Write the lines that are kept, which have no room for words, and verdicts.csv beside them."""
        root = self.root
        kept: dict[Path, list[str]] = {file: [] for file in self.files}
        table: list[tuple[Any, ...]] = [("file", "line", *VERDICT_COLUMNS)]
        for (file, line), more in zip(self.lines, attributes, strict=True):
            if more is not None:
                kept[file].append(line)
                table.append((file.relative_to(root), len(kept[file]), *map(more.get, VERDICT_COLUMNS)))
        texts = {file.relative_to(root): "".join(f"{line}\n" for line in lines) for file, lines in kept.items()}
        texts |= {Path(one): (root / one).read_text() for one in PLACE_OF_NAMES if (root / one).is_file()}
        for file, text in texts.items():
            with replacing(target / file) as temporary:
                temporary.write_text(text, encoding="utf-8")
        with replacing(target / "verdicts.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows(map(as_text_cell, row) for row in table)


class PascalVoc(BoxFile):
    """Pascal VOC: an XML file per photo with an `object` per box."""

    @cached_property
    def files(self) -> list[Path]:
        """The XML files."""
        return sorted(self.path.rglob("*.xml")) if self.path.is_dir() else [self.path]

    def trees(self) -> Iterator[tuple[Path, ElementTree.ElementTree[ElementTree.Element]]]:
        """Yield each file parsed."""
        for file in self.files:
            try:
                yield file, ElementTree.parse(file)
            except ElementTree.ParseError as error:
                raise DataError(f"expected Pascal VOC's XML in {file}, got {error}; export it again") from error

    @cached_property
    def rows(self) -> list[tuple[str, Region]]:
        """The name of the photo and the region of each object."""
        found = []
        for file, tree in self.trees():
            photo = tree.findtext("filename") or file.stem
            for one in tree.iterfind("object"):
                corners = [one.findtext(f"bndbox/{corner}") or "" for corner in CORNER_COLUMNS[1]]
                left, top, right, bottom = _numbers(corners, f"a bndbox of {file}")
                score = one.findtext("confidence") or one.findtext("score")
                box = (left, top, right, bottom)
                found.append((photo, Region(box, one.findtext("name"), float(score) if score else None)))
        return found

    def write(self, target: Path, attributes: Sequence[Attributes | None]) -> None:
        """Write the files, each object with elements for what was decided."""
        rest = iter(attributes)
        for file, tree in self.trees():
            whole = tree.getroot()
            for one, more in [(one, next(rest)) for one in whole.findall("object")]:
                if more is None:
                    whole.remove(one)
                for name, value in (more or {}).items():
                    ElementTree.SubElement(one, VERDICT_COLUMNS[name]).text = "" if value is None else str(value)
            ElementTree.indent(tree)
            with replacing(target / file.relative_to(self.root) if self.path.is_dir() else target) as temporary:
                tree.write(temporary, encoding="utf-8")


def _yolo_box(values: Sequence[float]) -> tuple[Box, float | None]:
    """The box of the numbers behind a class, and the score: centre and size, or the corners of a polygon."""
    if len(values) <= 5:
        x, y, width, height, *score = values
        return (x - width / 2, y - height / 2, x + width / 2, y + height / 2), score[0] if score else None
    xs, ys = (list(compress(values, (i % 2 == first for i in range(len(values) // 2 * 2)))) for first in (0, 1))
    return (min(xs), min(ys), max(xs), max(ys)), values[-1] if len(values) % 2 else None


def _numbers(texts: Sequence[str], where: str, *, least: int = 4) -> list[float]:
    try:
        values = [float(text) for text in texts]
    except ValueError:
        values = []
    if len(values) < least:
        raise DataError(f"expected {least} numbers, got {' '.join(texts)!r} in {where}; export the boxes again")
    return values


def _first(names: Sequence[str], head: Sequence[str]) -> str | None:
    return next((one for one in names if one in head), None)
