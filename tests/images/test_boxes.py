"""Files of boxes are read alike in every form, and written back as they were, less what was dropped."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.scenes import SQUARES, coco, save_coco, save_table, save_voc, save_yolo
from unseen.errors import DataError
from unseen.images.boxes import read_boxes
from unseen.images.regions import Region

PHOTOS = ["a.png", "b.png"]
FORMS: dict[str, Callable[[Path], Path]] = {
    "coco": lambda folder: save_coco(folder / "boxes.json", PHOTOS),
    "yolo": lambda folder: save_yolo(folder / "yolo", PHOTOS),
    "voc": lambda folder: save_voc(folder / "voc", PHOTOS),
    "csv": lambda folder: save_table(folder / "boxes.csv", PHOTOS),
}
VERDICT = {"verdict": "known", "name": "red", "p_known": 0.9}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_boxes(tmp_path: Path, form: str) -> None:
    found = read_boxes(FORMS[form](tmp_path))
    assert sorted(Path(photo).stem for photo in found.photos) == ["a", "b"]
    for regions in found.regions.values():
        assert [one.label for one in regions] == list(SQUARES)
        for region, box in zip(regions, SQUARES.values(), strict=True):
            assert region.pixels((120, 80)) == pytest.approx(box, abs=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_back_reads_as_it_was_less_what_was_dropped(tmp_path: Path, form: str) -> None:
    found = read_boxes(FORMS[form](tmp_path))
    target = tmp_path / ("out" if found.path.is_dir() else f"out{found.path.suffix}")
    found.write(target, [VERDICT, None, {}] * 2)
    again = read_boxes(target)
    assert again.rows == [row for i, row in enumerate(found.rows) if i % 3 != 1]


def test_coco_keeps_everything_and_gains_attributes(tmp_path: Path) -> None:
    found = read_boxes(FORMS["coco"](tmp_path))
    found.write(tmp_path / "out.json", [VERDICT, {}, None] * 2)
    written, before = json.loads((tmp_path / "out.json").read_text()), coco(PHOTOS)
    assert written["annotations"][0] == before["annotations"][0] | {"attributes": VERDICT}
    assert written["annotations"][1] == before["annotations"][1]
    assert {**written, "annotations": 0} == {**before, "annotations": 0}


def test_coco_written_back_is_read_by_pycocotools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pycocotools = pytest.importorskip("pycocotools.coco", reason="the extra dev has it")
    read_boxes(FORMS["coco"](tmp_path)).write(tmp_path / "out.json", [VERDICT, None, {}] * 2)
    read = pycocotools.COCO(str(tmp_path / "out.json"))
    rows = read.loadAnns(read.getAnnIds(imgIds=[2]))
    assert [row.get("attributes") for row in rows] == [VERDICT, None]
    assert [read.cats[row["category_id"]]["name"] for row in rows] == ["red", "blue"]
    assert read.loadRes([row | {"score": 0.5} for row in rows]).getAnnIds() == [1, 2]


def test_results_of_a_detector_name_photos_by_number(tmp_path: Path) -> None:
    rows = [{"image_id": 139, "category_id": 1, "bbox": [1, 2, 30, 40], "score": 0.5}]
    rows.append({"image_id": "b", "category_id": 1, "bbox": [1, 2, 30, 40]})
    (tmp_path / "r.json").write_text(json.dumps(rows))
    found = read_boxes(tmp_path / "r.json")
    assert found.rows[0] == ("000000000139", Region((1, 2, 31, 42), None, 0.5))
    assert found.rows[1][0] == "b"
    found.write(tmp_path / "out.json", [VERDICT, None])
    assert json.loads((tmp_path / "out.json").read_text()) == [rows[0] | {"attributes": VERDICT}]


def test_yolo_reads_predictions_polygons_and_names_beside_them(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "x_jpg.rf.1.txt").write_text("1 0.5 0.5 0.5 0.5 0.25\n0 0.1 0.2 0.3 0.2 0.3 0.6 0.1 0.6\n")
    assert read_boxes(tmp_path).rows == [
        ("x_jpg.rf.1", Region((0.25, 0.25, 0.75, 0.75), "dog", 0.25, in_shares=True)),
        ("x_jpg.rf.1", Region((0.1, 0.2, 0.3, 0.6), "cat", None, in_shares=True)),
    ]


def test_yolo_written_back_has_classes_and_a_table_of_verdicts(tmp_path: Path) -> None:
    folder = FORMS["yolo"](tmp_path)
    read_boxes(folder / "data.yaml").write(tmp_path / "out", [VERDICT, None, {}] * 2)
    assert (tmp_path / "out" / "data.yaml").read_text() == (folder / "data.yaml").read_text()
    lines = (folder / "labels" / "a.txt").read_text().splitlines()
    assert (tmp_path / "out" / "labels" / "a.txt").read_text().splitlines() == [lines[0], lines[2]]
    with (tmp_path / "out" / "verdicts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"file": "labels/a.txt", "line": "1", "verdict": "known", "name": "red", "p_known": "0.9"}
    assert [row["line"] for row in rows] == ["1", "2", "1", "2"]


def test_voc_and_csv_gain_elements_and_columns_beside_the_class(tmp_path: Path) -> None:
    read_boxes(FORMS["voc"](tmp_path)).write(tmp_path / "out", [VERDICT, None, {}] * 2)
    one, other = ElementTree.parse(tmp_path / "out" / "b.xml").iterfind("object")
    assert (one.findtext("verdict"), one.findtext("verdict_name"), one.findtext("name")) == ("known", "red", "red")
    assert other.find("verdict") is None
    read_boxes(FORMS["csv"](tmp_path)).write(tmp_path / "out.csv", [VERDICT, None, {}] * 2)
    assert (tmp_path / "out.csv").read_text().splitlines()[:2] == [
        "filename,class,conf,xmin,ymin,xmax,ymax,verdict,verdict_name,p_known",
        "a.png,red,0.9,10,10,40,40,known,red,0.9",
    ]


def test_a_table_may_hold_corner_and_size(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("image,x,y,width,height\na.jpg,1,2,30,40\n")
    assert read_boxes(tmp_path / "b.csv").rows == [("a.jpg", Region((1, 2, 31, 42)))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "expected COCO's JSON in .*a.json, got .*; export it again"),
        ("a.json", '{"boxes": []}', "expected 'annotations' or a list of results"),
        ("a.json", '[{"image_id": 1}]', "expected image_id and bbox, got .* as box 0"),
        ("a.json", "[]", "expected at least one box, got none"),
        ("a.csv", "photo,left\na.jpg,1\n", r"expected columns photo, left, top, right, bottom .*got photo, left"),
        ("a.csv", "photo,x1,y1,x2,y2\na.jpg,1,2,x,4\n", "expected 4 numbers, got '1 2 x 4' in line 2"),
        ("a.txt", "0 0.5 0.5\n", "expected 5 numbers, got '0 0.5 0.5'"),
        ("a.xml", "<annotation>", "expected Pascal VOC's XML"),
        ("a.pdf", "x", "expected boxes as COCO .json"),
    ],
)
def test_what_holds_no_boxes_is_refused_by_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_boxes(tmp_path / name)


def test_a_folder_of_json_is_refused(tmp_path: Path) -> None:
    FORMS["coco"](tmp_path)
    with pytest.raises(DataError, match=r"expected boxes as COCO \.json, \.csv, or a folder"):
        read_boxes(tmp_path)
