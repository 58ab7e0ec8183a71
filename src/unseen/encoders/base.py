"""One protocol for every model, and one table of where models come from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import SettingError
from unseen.images import Image


class Encoder(Protocol):
    """Images and texts in, unit float32 vectors of one space out.

    `fingerprint` is the identity of that space: weights and preprocessing, not the arithmetic they run in.
    """

    name: str
    dim: int

    @property
    def fingerprint(self) -> str:
        """Return a hash that two encoders share only if their vectors can be compared."""

    def images(self, batch: Sequence[Image]) -> Float[Tensor, "n d"]:
        """Return one vector per image."""

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Return one vector per text."""


class SplitEncoder(Encoder, Protocol):
    """An encoder whose work can be shared out: pixels are made where processors are, vectors where the weights are.

    `images(batch)` is `vectors(prepare(batch))` up to how a batch is cut.
    """

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """Return what makes pixels out of pictures: small enough to send to a worker, and without the weights."""

    def vectors(self, pixels: Tensor) -> Float[Tensor, "n d"]:
        """Return one unit vector per image whose pixels `prepare` made."""


@runtime_checkable
class PatchEncoder(Protocol):
    """An encoder that can also say what is where in an image (GL-MCM)."""

    def patches(self, batch: Sequence[Image]) -> Float[Tensor, "n p d"]:
        """Return one vector per image patch."""


SHORT_NAMES: Mapping[str, str] = {
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14@336": "openai/clip-vit-large-patch14-336",
}

# prefix -> module and class; each takes (what follows the prefix, device=, dtype=) and is imported only when named
SOURCES: Mapping[str, tuple[str, str]] = {
    "offline": ("unseen.encoders.offline.encoder", "OfflineEncoder"),
    "hub": ("unseen.encoders.hub", "HubEncoder"),
    "open_clip": ("unseen.encoders.open_clip", "OpenClipEncoder"),
    "onnx": ("unseen.encoders.onnx", "OnnxEncoder"),
}


OFFLINE = ("offline", "offline-b16")  # short, and as a label space names it: every encoder loads by its own name


def load_encoder(
    name: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> SplitEncoder:
    """Return the encoder called `name`.

    `name` is "offline", a short name such as "ViT-B/16", a hub id, a local folder, "open_clip:RN50/openai", or an
    ONNX file written by `unseen export`.
    """
    source, rest = resolve(name)
    module, cls = SOURCES[source]
    make: Callable[..., SplitEncoder] = getattr(importlib.import_module(module), cls)
    return make(rest, device=device, dtype=dtype)


def resolve(name: str | Path) -> tuple[str, str]:
    """Return which source knows `name`, and what that source calls it."""
    text = str(name)
    prefix, colon, rest = text.partition(":")
    if text in OFFLINE:
        return "offline", ""
    if colon and prefix in SOURCES:
        return prefix, rest
    if text.endswith(".onnx"):
        return "onnx", text
    if not text.strip():
        raise SettingError(
            f"expected the name of an encoder, got an empty one; try offline or {next(iter(SHORT_NAMES))}"
        )
    return "hub", SHORT_NAMES.get(text, text)
