"""Regions are cut where their boxes say, from a photo that is decoded once; what shows nothing is skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from helpers.scenes import SIZE, SQUARES, save_scene
from helpers.tiny_models import COLOURS
from unseen import read_regions
from unseen.errors import DataError
from unseen.images import find_images, read_entries
from unseen.images.regions import (
    BOUNDS,
    Box,
    Region,
    SharedPhoto,
    as_regions,
    match_photos,
    region_entries,
    window_entries,
    windows,
)

BOXES = list(SQUARES.values())


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    return save_scene(tmp_path / "photos" / "a.png")


def test_each_region_shows_its_own_square_and_has_a_key_of_its_own(scene: Path) -> None:
    regions = read_regions(scene, BOXES, pad=0)
    assert [image.path for image in regions] == [f"{scene}#1", f"{scene}#2", f"{scene}#3"]
    for image, colour in zip(regions, COLOURS.values(), strict=True):
        assert image.pixels.size == (30, 30)
        assert image.pixels.getcolors() == [(900, colour)]


def test_the_margin_is_a_share_of_the_longer_side_on_each_side_and_ends_with_the_photo(scene: Path) -> None:
    inside, outside = read_regions(scene, [[40, 20, 60, 60], [0, 0, 20, 40]], pad=0.1)
    assert inside.pixels.size == (48, 48)  # square: 40 pixels and a tenth of them on each side
    assert outside.pixels.size == (34, 44)


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((10, 10, 10, 40), "empty box: 10 10 10 40"),
        ((40, 10, 10, 40), "empty box"),
        ((10, 10, float("nan"), 40), "empty box"),
        ((200, 10, 240, 40), "outside the photo of 120 x 80 pixels"),
        ((10, 10, 40, 13), "box too small: 30 x 3 pixels, at least 8 wanted"),
        ((115, 10, 400, 40), "box too small: 5 x 30 pixels"),
    ],
)
def test_a_box_that_shows_nothing_is_skipped_with_a_reason(scene: Path, box: Any, reason: str) -> None:
    batch = read_regions(scene, [box, BOXES[0]])
    assert [image.path for image in batch] == [f"{scene}#2"]
    assert reason in batch.skipped[0].reason


def test_a_photo_has_a_bounded_number_of_regions(scene: Path) -> None:
    batch = read_regions(scene, BOXES * (BOUNDS.most // 3 + 1))
    assert len(batch) == BOUNDS.most
    assert {one.reason for one in batch.skipped} == {"too many boxes: at most 1,000 of a photo are judged"}


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_photo_is_decoded_once_for_all_of_its_regions(scene: Path, chunks: int) -> None:
    (entry,) = find_images(scene)
    read: list[int] = []

    def data() -> bytes:
        read.append(1)
        return scene.read_bytes()

    shared = SharedPhoto(replace(entry, data=data), {f"a#{i}": Region(box) for i, box in enumerate(BOXES, 1)})
    for _ in range(chunks):  # a second reading starts anew: nothing is held in between
        assert sum(map(len, read_entries(shared.entries(), size=2))) == 3
        assert shared.held is None
    assert len(read) == chunks


def test_a_damaged_photo_is_a_reason_for_each_of_its_regions(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    batch = read_regions(tmp_path / "a.png", BOXES)
    assert [one.reason for one in batch.rows] == ["not an image of a supported format"] * 3  # type: ignore[union-attr]


def test_entries_know_photo_and_box_of_a_key_and_change_their_identity_with_the_box(scene: Path) -> None:
    boxes = {"a": [Region((0.5, 0, 1, 0.5), "dog", 0.9, in_shares=True), Region(BOXES[0])]}
    entries, names = region_entries([str(scene.parent)], boxes)
    assert names == {str(scene): "a"}
    assert len(entries) == 2
    assert [one.path for one in entries] == list(entries.keys) == [f"{scene}#1", f"{scene}#2"]
    for one in entries:
        one.read()
    assert entries.at(f"{scene}#1") == (str(scene), Region((60.0, 0.0, 120.0, 40.0), "dog", 0.9))
    padded, _ = region_entries([str(scene.parent)], boxes, pad=0.2)
    assert len({one.identity for one in (*entries, *padded)}) == 4


def test_windows_cover_the_photo_and_overlap_by_half(scene: Path) -> None:
    covered = np.zeros(SIZE[::-1], int)
    for one in windows(3):
        left, top, right, bottom = map(round, one.pixels(SIZE))
        covered[top:bottom, left:right] += 1
    assert covered.min() >= 1
    assert len(windows(1)) == 1
    assert len(window_entries([str(scene.parent)], 2)) == 9


def test_names_of_photos_match_by_the_whole_of_the_shorter_path() -> None:
    photos = ["p/a/1.jpg", "p/b/1.jpg", "p/frame.001.jpg", "p/x.png"]
    assert match_photos(photos, ["b/1.jpg"]) == {1: "b/1.jpg"}
    assert match_photos(photos, ["c/1.jpg"]) == {}  # two photos could be meant
    assert match_photos(photos, ["/data/old/frame.001.jpg", "frame.002"]) == {2: "/data/old/frame.001.jpg"}
    assert match_photos(photos, ["frame.001", "x.jpg"]) == {2: "frame.001"}
    assert match_photos(["a\\b.jpg"], ["a/b.jpg"]) == {0: "a/b.jpg"}


def test_boxes_of_other_photos_and_videos_are_refused(scene: Path) -> None:
    with pytest.raises(DataError, match=r"expected boxes on these photos, got those of others \(first: b\.jpg\)"):
        region_entries([str(scene.parent)], {"b.jpg": [Region(BOXES[0])]})
    (scene.parent / "clip.mp4").write_bytes(b"x")
    with pytest.raises(DataError, match="expected photos to cut regions from, got a video"):
        region_entries([str(scene.parent / "clip.mp4")], {"clip": [Region(BOXES[0])]})


XYXY = torch.tensor(BOXES, dtype=torch.float32)
NAMES = {0: "red", 1: "green", 2: "blue"}
ULTRALYTICS = SimpleNamespace(
    boxes=SimpleNamespace(xyxy=XYXY, cls=torch.tensor([0.0, 1.0, 2.0]), conf=torch.tensor([0.5, 0.75, 1.0])),
    names=NAMES,
)
TORCHVISION = {"boxes": XYXY, "labels": torch.tensor([0, 1, 2]), "scores": torch.tensor([0.5, 0.75, 1.0])}


@pytest.mark.parametrize("found", [ULTRALYTICS, TORCHVISION])
def test_what_detectors_return_becomes_regions(found: Any) -> None:
    assert as_regions(found, NAMES) == [
        Region(cast(Box, tuple(map(float, box))), name, score)
        for box, name, score in zip(BOXES, NAMES.values(), (0.5, 0.75, 1.0), strict=True)
    ]


def test_detections_of_supervision_become_regions() -> None:
    supervision = pytest.importorskip("supervision", reason="the extra dev has it")
    found = supervision.Detections(
        xyxy=XYXY.numpy(),
        class_id=np.array([0, 1, 2]),
        confidence=np.array([0.5, 0.75, 1.0]),
        data={"class_name": np.array(["red", "green", "blue"])},
    )
    assert as_regions(found) == as_regions(ULTRALYTICS)
    assert as_regions(supervision.Detections.empty()) == []


def test_arrays_have_no_classes_and_numbers_without_names_none() -> None:
    assert as_regions(XYXY) == as_regions(XYXY.tolist()) == [Region(cast(Box, tuple(map(float, box)))) for box in BOXES]
    assert [one.label for one in as_regions(TORCHVISION)] == [None] * 3
    assert as_regions(np.empty((0, 4))) == []
