"""Models of open_clip (ResNet-50, LAION, DataComp ...): `open_clip:ARCHITECTURE/PRETRAINED` or a folder; an extra."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.device import gpu_dtype, pick_device
from unseen.errors import EncoderError, LabelError, MissingExtra
from unseen.images import Image


class OpenClipEncoder:
    """One architecture with one set of weights; preprocessing and tokenizer are those open_clip lists for it.

    A folder with an `open_clip_config.json` beside its weights brings its own.
    """

    def __init__(
        self, source: str, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.name = f"open_clip:{source}"
        self.device = pick_device(device)
        self.dtype = dtype or gpu_dtype(self.device)
        self.model, self.preprocess, self.tokenizer = _load(source)
        self.fingerprint = self._fingerprint()  # before the weights are rounded to another precision
        self.model.to(self.device, self.dtype)

    @cached_property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self.texts(["a"]).shape[1]

    def images(self, batch: Sequence[Image]) -> Float[Tensor, "n d"]:
        """Return one unit vector per image."""
        if not batch:
            return torch.empty(0, self.dim, device=self.device)
        return self.vectors(self.prepare(batch))

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """Return open_clip's own steps for this architecture."""
        return partial(_stacked, self.preprocess)

    def vectors(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """Return one unit vector per prepared image."""
        with torch.inference_mode():
            return normalize(self.model.encode_image(pixels.to(self.device, self.dtype)).float(), dim=-1)

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Return one unit vector per text; a text that does not fit the context is an error, not cut."""
        if isinstance(prompts, str):
            raise LabelError(f"expected a list of texts, got one string; pass [{prompts!r}]")
        if not prompts:
            return torch.empty(0, self.dim, device=self.device)
        limit = self.tokenizer.context_length
        if long := [prompt for prompt in prompts if self._length(prompt) > limit]:
            raise LabelError(f"expected texts of at most {limit} tokens, got {long[0][:60]!r}...; shorten the text")
        with torch.inference_mode():
            tokens = self.tokenizer(list(prompts)).to(self.device)
            return normalize(self.model.encode_text(tokens).float(), dim=-1)

    def _length(self, prompt: str) -> int:
        inner = getattr(self.tokenizer, "tokenizer", None)  # a wrapped transformers tokenizer counts its own ends
        return len(inner(prompt).input_ids) if inner else len(self.tokenizer.encode(prompt)) + 2

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.name} {self.preprocess}".encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.float().contiguous().flatten().numpy().tobytes())
        return digest.hexdigest()


def _stacked(preprocess: Any, batch: Sequence[Image]) -> Tensor:
    return torch.stack([preprocess(image.pixels) for image in batch])


def _load(source: str) -> tuple[Any, Any, Any]:
    try:
        import open_clip
    except ImportError as error:
        raise MissingExtra("open_clip_torch", "open-clip") from error
    if Path(source).is_dir():
        return _created(open_clip, f"local-dir:{source}")
    architecture, slash, weights = source.partition("/")
    if not slash or (architecture, weights) not in open_clip.list_pretrained():
        known = ", ".join(f"{name}/{tag}" for name, tag in open_clip.list_pretrained()[:5])
        raise EncoderError(
            f"expected open_clip:ARCHITECTURE/PRETRAINED or a folder, got {source!r}; for example {known}"
        )
    # weights trained with QuickGELU silently lose accuracy with the plain one, and open_clip only warns
    quick = bool(open_clip.get_pretrained_cfg(architecture, weights).get("quick_gelu"))
    return _created(open_clip, architecture, pretrained=weights, force_quick_gelu=quick)


def _created(open_clip: Any, name: str, **options: Any) -> tuple[Any, Any, Any]:
    try:
        model, preprocess = open_clip.create_model_from_pretrained(name, **options)
        return model.eval(), preprocess, open_clip.get_tokenizer(name)
    except (RuntimeError, OSError, ValueError) as error:
        raise EncoderError(
            f"expected open_clip to load {name} with its weights, got {str(error)[:200]}; "
            "check the network, or the folder's open_clip_config.json and weights"
        ) from error
