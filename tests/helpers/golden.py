"""Stored scores of every detector on the images of the demo, in a label space of their own.

Rewrite those of one detector, where a change is meant, with

PYTHONPATH=src:tests python -m helpers.golden pooled
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen import LabelSpace, __version__, demo, detectors
from unseen.keyed import one_thread
from unseen.storage.files import load_tensors

FOLDER = Path(__file__).parents[1] / "data" / "golden"
FILE = FOLDER / "demo_scores.safetensors"
EVERY = 7  # only each seventh row is stored; the detector observes all of them


def outputs(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a detector says of the demo pack: observed in a shuffled order, and the first samples unlearned."""
    rows, space = demo.load().shuffled(0).z.to(dtype), golden_space()
    space = replace(space, id_anchors=space.id_anchors.to(dtype), ood_anchors=space.ood_anchors.to(dtype))
    detector = detectors.make(name, space)
    z = rows[:320].view(64, 5, -1) if detector.parts else rows
    with one_thread():
        observed, _ = detector.observe(detector.start(), z)
        pure = detector.score(detector.start(), z[:50])
    kept = slice(None, None, 1 if detector.parts else EVERY)
    stored = {field: column for field, column in observed._asdict().items() if field != "negative"}
    return {field: column[kept] for field, column in stored.items()} | {"pure": pure.score}


def golden_space() -> LabelSpace:
    """The label space that the demo of 0.2 had, with negatives far from its names."""
    tensors, header = load_tensors(FOLDER / "space.safetensors", kind="golden-space")
    words = json.loads(header)
    return LabelSpace(tuple(words["names"]), tuple(words["negatives"]), tensors["id_anchors"], tensors["ood_anchors"])


def stored(name: str) -> dict[str, Tensor]:
    """What the file holds of a detector."""
    return {key.partition("/")[2]: part for key, part in load_file(FILE).items() if key.partition("/")[0] == name}


def rewrite(name: str) -> None:
    """Replace the stored scores of one detector by those of today."""
    found = {
        field: column.float() if column.is_floating_point() else column
        for field, column in outputs(name, torch.float64).items()
    }
    found["label"] = found["label"].to(torch.int16)
    parts = {f"{name}/{field}": column.contiguous() for field, column in found.items()}
    others = {key: part for key, part in load_file(FILE).items() if key.partition("/")[0] != name}
    save_file(others | parts, FILE, metadata={"made_by": f"unseen {__version__}"})


if __name__ == "__main__":
    rewrite(sys.argv[1])
