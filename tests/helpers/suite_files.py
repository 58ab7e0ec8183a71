"""A small suite on disk: feature files and a TOML table over them; and a trial without any file."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import stream, unit
from unseen import LabelSpace
from unseen_bench.trial import Trial

DIM = 16
NAMES = [f"name {i}" for i in range(6)]
NEGATIVES = [f"negative {i}" for i in range(30)]

TABLE = """
about = "six names against thirty"
[known]
text = "text"
rows = "lists.json#toy/known"
images = "known"
[[negatives]]
text = "text"
rows = "lists.json#toy/negative"
[unknown.near]
images = "near"
classes = [0, 2]
[unknown.far]
images = "far"
"""


def write(folder: Path, *, table: str = TABLE, known_images: int = 60) -> Path:
    """Write a suite's features, lists and table into `folder`; return the path of the table."""
    text = unit(len(NAMES) + len(NEGATIVES), DIM, seed=1, dtype=torch.float32)
    known, negative = text.split([len(NAMES), len(NEGATIVES)])
    put(folder, "text", text, metadata={"names": json.dumps(NAMES + NEGATIVES), "encoder": "toy"})
    truth = torch.arange(known_images) % len(NAMES)
    put(folder, "known", around(known[truth], seed=2), truth, metadata={"classes": json.dumps(list("012345"))})
    kind = torch.arange(30) % 3
    put(folder, "near", around(negative[kind], seed=3), kind, metadata={"classes": json.dumps(list("abc"))})
    put(folder, "far", around(negative[10:30], seed=4))
    lists = {"toy": {"known": list(range(6)), "negative": list(range(6, 36))}}
    (folder / "lists.json").write_text(json.dumps(lists))
    (folder / "toy.toml").write_text(table)
    return folder / "toy.toml"


def put(folder: Path, name: str, z: Tensor, labels: Tensor | None = None, *, metadata=None) -> None:
    tensors = {"features": z.half()} | ({} if labels is None else {"labels": labels})
    save_file(tensors, folder / f"{name}.safetensors", metadata=metadata)


def around(anchors: Tensor, *, seed: int, reach: float = 1.2) -> Tensor:
    """One sample near each anchor, some near enough that a gate is sure of them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = normalize(torch.randn(anchors.shape, generator=generator), dim=1)
    return normalize(anchors + reach * torch.rand(len(anchors), 1, generator=generator) * drawn, dim=1)


def trial_of(labels: LabelSpace, samples: int = 120, *, noise: float = 0.3) -> Trial:
    """A stream whose truth is the nearest anchor: a known name, or a negative of one of two sets."""
    z = stream(labels, samples, noise=noise)
    nearest = (z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T).argmax(1)
    is_id = nearest < len(labels.names)
    label, source = torch.where(is_id, nearest, -1), torch.where(is_id, 0, 1 + nearest % 2)
    return Trial(z, label, source, ("known", "near", "far"))
