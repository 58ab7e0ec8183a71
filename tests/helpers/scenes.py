"""Photos with coloured squares at known places, and files of their boxes in each form."""

import json
from pathlib import Path
from typing import Any

from helpers.pictures import flat
from helpers.tiny_models import COLOURS

SIZE = (120, 80)
SQUARES = {"red": (10, 10, 40, 40), "green": (60, 10, 90, 40), "blue": (60, 45, 90, 75)}  # xyxy, as the photo has them
CLASSES = list(SQUARES)


def save_scene(path: Path) -> Path:
    """Write a grey photo with a square of each colour."""
    scene = flat((128, 128, 128), SIZE)
    for name, box in SQUARES.items():
        scene.paste(COLOURS[name], box)
    path.parent.mkdir(parents=True, exist_ok=True)
    scene.save(path)
    return path


def coco(photos: list[str], *, squares: dict[str, tuple[int, ...]] | None = None) -> dict[str, Any]:
    """COCO's JSON for scenes: each square is a box, its colour is its class."""
    rows = [
        (number, name, box)
        for number in range(1, len(photos) + 1)
        for name, box in (SQUARES if squares is None else squares).items()
    ]
    return {
        "info": {"description": "a test"},
        "images": [{"id": i, "file_name": one, "width": SIZE[0], "height": SIZE[1]} for i, one in enumerate(photos, 1)],
        "annotations": [
            {
                "id": place,
                "image_id": number,
                "category_id": CLASSES.index(name) + 1 if name in CLASSES else 1,
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "area": (box[2] - box[0]) * (box[3] - box[1]),
                "iscrowd": 0,
                "score": 0.9,
            }
            for place, (number, name, box) in enumerate(rows, 1)
        ],
        "categories": [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)],
    }


def save_coco(path: Path, photos: list[str], **options: Any) -> Path:
    """Write COCO's JSON for scenes."""
    path.write_text(json.dumps(coco(photos, **options)))
    return path


def save_yolo(folder: Path, photos: list[str]) -> Path:
    """Write YOLO's text files for scenes, with data.yaml above them."""
    (folder / "labels").mkdir(parents=True)
    names = "".join(f"  {i}: {name}\n" for i, name in enumerate(CLASSES))
    (folder / "data.yaml").write_text(f"train: images\nnames:\n{names}")
    for photo in photos:
        lines = []
        for i, (left, top, right, bottom) in enumerate(SQUARES.values()):
            x, y = (left + right) / 2 / SIZE[0], (top + bottom) / 2 / SIZE[1]
            lines.append(f"{i} {x:.6f} {y:.6f} {(right - left) / SIZE[0]:.6f} {(bottom - top) / SIZE[1]:.6f}\n")
        (folder / "labels" / f"{Path(photo).stem}.txt").write_text("".join(lines))
    return folder


def save_voc(folder: Path, photos: list[str]) -> Path:
    """Write Pascal VOC's XML files for scenes."""
    folder.mkdir(parents=True)
    corners = ("xmin", "ymin", "xmax", "ymax")
    for photo in photos:
        objects = "".join(
            f"<object><name>{name}</name><bndbox>"
            + "".join(f"<{corner}>{value}</{corner}>" for corner, value in zip(corners, box, strict=True))
            + "</bndbox></object>"
            for name, box in SQUARES.items()
        )
        text = f"<annotation><filename>{photo}</filename>{objects}</annotation>"
        (folder / f"{Path(photo).stem}.xml").write_text(text)
    return folder


def save_table(path: Path, photos: list[str]) -> Path:
    """Write a CSV of the boxes of scenes."""
    lines = [f"{photo},{name},0.9,{','.join(map(str, box))}" for photo in photos for name, box in SQUARES.items()]
    path.write_text("\n".join(["filename,class,conf,xmin,ymin,xmax,ymax", *lines]) + "\n")
    return path
