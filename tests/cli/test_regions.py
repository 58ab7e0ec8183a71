"""unseen detect on the boxes of a detector: a line each, agreement with its classes, its file written back."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

from helpers.commands import detect, rows, run
from helpers.pictures import flat
from helpers.scenes import SIZE, SQUARES, save_coco, save_scene
from helpers.tiny_models import COLOURS, NamedColours
from unseen.errors import DataError, SettingError

NAMES = ("--label", "red", "--label", "green")
STATE = ("--state", "s.safetensors")
PHOTOS = [f"{i}.png" for i in range(4)]

pytestmark = pytest.mark.usefixtures("encoder", "scenes")


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    """Four photos with a red, a green and a blue square each, and COCO's boxes of these."""
    for photo in PHOTOS:
        save_scene(tmp_path / "photos" / photo)
    return save_coco(tmp_path / "boxes.json", PHOTOS)


def boxes_of(path: Path) -> list[tuple[int, int]]:
    """Photo and class of each box in COCO's JSON."""
    return [(one["image_id"], one["category_id"]) for one in json.loads(path.read_text())["annotations"]]


def by_key(result: Any) -> dict[str, dict[str, Any]]:
    return {Path(row["key"]).name: row for row in rows(result) if "verdict" in row}


def test_each_box_is_judged_as_an_image_and_compared_with_what_the_detector_said() -> None:
    found = by_key(detect("photos", "--boxes", "boxes.json", *NAMES, "--json"))
    assert list(found) == [f"{i}.png#{number}" for i in range(4) for number in (1, 2, 3)]
    red, green, blue = (found[f"0.png#{number}"] for number in (1, 2, 3))
    assert (red["verdict"], red["name"], red["agrees"]) == ("known", "red", True)
    assert green["name"] == "green"
    assert (blue["verdict"], blue["detector"], blue["agrees"]) == ("unknown", "blue", True)  # no name of ours either
    assert (red["photo"], red["box"], red["detector_score"]) == ("photos/0.png", [10, 10, 40, 40], 0.9)


def test_a_detector_that_calls_the_unknown_by_our_name_disagrees(tmp_path: Path) -> None:
    data = json.loads((tmp_path / "boxes.json").read_text())
    data["categories"][2]["name"] = "Green"  # the blue square, as a detector of two classes would call it
    (tmp_path / "boxes.json").write_text(json.dumps(data))
    result = detect("photos", "--boxes", "boxes.json", *NAMES)
    first = result.stdout.splitlines()[:3]
    assert first[0].endswith("detector: red 0.90")
    assert re.search(r"#3 +unknown +near .* % .*  detector: Green 0.90, disagrees$", first[2])
    assert "the detector disagrees on 4 of 12 boxes" in result.stderr


def test_classes_of_boxes_change_no_verdict(tmp_path: Path) -> None:
    with_classes = by_key(detect("photos", "--boxes", "boxes.json", *NAMES, "--json"))
    data = json.loads((tmp_path / "boxes.json").read_text())
    del data["categories"]
    (tmp_path / "boxes.json").write_text(json.dumps(data))
    without = by_key(detect("photos", "--boxes", "boxes.json", *NAMES, "--json"))
    judged = ("verdict", "name", "margin", "threshold", "p_known")
    assert [[one[field] for field in judged] for one in without.values()] == [
        [one[field] for field in judged] for one in with_classes.values()
    ]
    assert "detector" not in without["0.png#1"]


@pytest.mark.parametrize(
    ("option", "classes"), [((), {1, 2, 3}), (("--keep-known",), {1, 2}), (("--drop-unknown",), {1, 2})]
)
def test_the_file_is_written_back_with_verdicts(tmp_path: Path, option: tuple[str, ...], classes: set[int]) -> None:
    result = detect("photos", "--boxes", "boxes.json", *NAMES, "-o", "judged.json", *option)
    assert set(boxes_of(tmp_path / "judged.json")) == {(photo, one) for photo in range(1, 5) for one in classes}
    first = json.loads((tmp_path / "judged.json").read_text())["annotations"][0]
    assert first["attributes"]["verdict"] == "known"
    assert first["attributes"]["name"] == "red"
    assert 0.5 <= first["attributes"]["p_known"] <= 1
    assert len(result.stdout.splitlines()) == 12  # the lines are printed as well
    assert "boxes in judged.json" in result.stderr
    detect("photos", "--boxes", "boxes.json", *NAMES, "-o", "verdicts.csv")
    with (tmp_path / "verdicts.csv").open() as file:
        row = next(csv.DictReader(file))
    fields = ("key", "photo", "detector", "agrees")
    assert [row[field] for field in fields] == ["photos/0.png#1", "photos/0.png", "red", "True"]


def test_boxes_that_were_not_judged_stay_unless_known_ones_are_wanted(tmp_path: Path) -> None:
    save_coco(tmp_path / "boxes.json", [*PHOTOS, "elsewhere.png"], squares={**SQUARES, "tiny": (0, 0, 3, 3)})
    words = ("photos", "--boxes", "boxes.json", *NAMES, "-o", "judged.json")
    result = detect(*words, "--drop-unknown", code=1)
    assert "1 of 5 photos in boxes.json are not among these photos" in result.stderr
    assert "box too small: 3 x 3 pixels" in result.stdout
    assert len(boxes_of(tmp_path / "judged.json")) == 4 * 3 + 4
    detect(*words, "--keep-known", code=1)
    assert len(boxes_of(tmp_path / "judged.json")) == 4 * 2


def test_a_repeated_command_learns_no_region_twice_and_the_next_box_file_does(tmp_path: Path) -> None:
    detect("photos", "--boxes", "boxes.json", *NAMES, *STATE)
    again = detect("photos", "--boxes", "boxes.json", *STATE)
    assert "learned before 12" in again.stderr
    moved = {name: (a + 1, b + 1, c - 1, d - 1) for name, (a, b, c, d) in SQUARES.items()}
    save_coco(tmp_path / "boxes.json", PHOTOS, squares=moved)
    assert "learned before" not in detect("photos", "--boxes", "boxes.json", *STATE, "--pad", "0").stderr


def test_options_that_do_not_go_together_are_refused() -> None:
    for words, message in [
        (("--boxes", "boxes.json", "--windows", "2"), "expected --boxes or --windows, got both"),
        (("--windows", "2", "--sort-into", "out"), "expected --sort-into for whole photos"),
        (("--drop-unknown",), "expected --boxes with --keep-known and --drop-unknown"),
        (("--boxes", "boxes.json", "--keep-known"), r"expected -o .* add -o boxes\.judged\.json"),
        (("--boxes", "boxes.json", "--pad", "wide"), "expected --pad from 0% to 100%, got 'wide'"),
    ]:
        with pytest.raises(SettingError, match=message):
            run("detect", "photos", *NAMES, *words)
    with pytest.raises(DataError, match="got nothing at none"):
        run("detect", "photos", *NAMES, "--boxes", "none.json")


def test_a_report_draws_the_boxes_on_the_photos_in_the_colours_of_their_verdicts(tmp_path: Path) -> None:
    detect("photos", "--boxes", "boxes.json", *NAMES, "--report", "r.html")
    page = (tmp_path / "r.html").read_text()
    drawn = re.findall(r'<g class="(\w+)"><title>(.*?)</title>\s*<rect x="([\d.]+)" y="([\d.]+)"', page)
    assert len(drawn) == 12
    kind, words, x, y = drawn[2]
    assert (kind, x, y) == ("unknown", "60.0", "45.0")
    assert re.fullmatch(r"#3 +unknown +near \w+ +\d+ %   detector: blue 0.90", words)
    assert page.count("<image ") == len(PHOTOS)


def test_parts_of_photos_are_explained_grouped_and_exported_by_their_keys(tmp_path: Path) -> None:
    detect("photos", "--boxes", "boxes.json", *NAMES, *STATE)
    for key in ("photos/0.png#1", "photos/3.png#3"):
        assert run("explain", key, *STATE).stdout.startswith(f"{key}  ")
    run("review", *STATE, "-o", "labels.json", "--format", "coco")
    labels = json.loads((tmp_path / "labels.json").read_text())
    names = {one["id"]: one["name"] for one in labels["categories"]}
    files = {one["id"]: one["file_name"] for one in labels["images"]}
    boxes = {(files[one["image_id"]], names[one["category_id"]]): one["bbox"] for one in labels["annotations"]}
    assert boxes["photos/2.png", "unknown"] == [60, 45, 30, 30]
    assert len(files) == len(PHOTOS)
    run("review", *STATE, "-o", "labels.csv")
    with (tmp_path / "labels.csv").open() as file:
        assert {row["box"] for row in csv.DictReader(file)} >= {"60 45 90 75"}


def test_parts_of_photos_are_cut_out_into_a_folder_per_label(tmp_path: Path) -> None:
    detect("photos", "--boxes", "boxes.json", *NAMES, *STATE)
    run("review", *STATE, "-o", "labelled", "--format", "folder")
    cut = sorted((tmp_path / "labelled" / "unknown").iterdir())
    assert [path.name.partition("-")[2] for path in cut] == [f"{i}.png#3.png" for i in range(4)]


def test_groups_show_parts_of_photos(tmp_path: Path) -> None:
    for i, photo in enumerate(PHOTOS):  # copies would make no group
        scene = Pillow.open(tmp_path / "photos" / photo)
        scene.paste(((10, 20, 230), (70, 20, 230), (10, 90, 230), (40, 50, 120))[i], SQUARES["blue"])
        scene.save(tmp_path / "photos" / photo)
    detect("photos", "--boxes", "boxes.json", *NAMES, *STATE)
    *groups, _ = rows(run("group", *STATE, "--words", "negatives", "--report", "g.html", "--json"))
    page = (tmp_path / "g.html").read_text()
    assert all(key.endswith(".png#3") for key in groups[0]["keys"])
    assert page.count("data:image/jpeg;base64") == sum(len(one["exemplars"]) for one in groups)


def test_windows_say_which_part_of_a_photo_is_least_known_and_teach_nothing(tmp_path: Path) -> None:
    for photo in PHOTOS:
        scene = flat(COLOURS["red"], SIZE)
        scene.paste(COLOURS["blue"], (60, 40, 120, 80))
        scene.save(tmp_path / "photos" / photo)
    (tmp_path / "photos" / "x.png").write_bytes(b"no image")
    result = detect("photos", "--windows", "2", *NAMES, *STATE, "--json", "--report", "r.html", code=1)
    found = by_key(result)
    assert [(one["key"], one["photo"], one["box"], one["verdict"]) for one in found.values()] == [
        (f"photos/{photo}#9", f"photos/{photo}", [60, 40, 120, 80], "unknown") for photo in PHOTOS
    ]
    assert {"key": "photos/x.png", "skipped": "not an image of a supported format"} in rows(result)
    assert not (tmp_path / "s.safetensors").exists()
    assert len(re.findall(r'<g class="unknown"><title>#9 ', (tmp_path / "r.html").read_text())) == len(PHOTOS)


def test_an_encoder_that_has_windows_sees_each_photo_once(encoder: NamedColours) -> None:
    encoder.windows = lambda batch, boxes: torch.eye(3)[None, :1].expand(len(batch), len(boxes), 3)  # type: ignore[attr-defined]
    found = by_key(detect("photos", "--windows", "3", *NAMES, "--json"))
    assert {one["name"] for one in found.values()} == {"red"}
    assert encoder.calls == 0
