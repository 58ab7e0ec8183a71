"""Models of open_clip (ResNet-50, LAION, DataComp ...): `open_clip:ARCHITECTURE/PRETRAINED` or a folder; an extra."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from torch import Tensor

from unseen.encoders.preprocess import crop_narrow
from unseen.encoders.torch_encoder import TorchEncoder, Where
from unseen.errors import EncoderError, LabelError, import_extra
from unseen.images import Image


class OpenClipEncoder(TorchEncoder):
    """One architecture with one set of weights; preprocessing and tokenizer are those open_clip lists for it.

    A folder with an `open_clip_config.json` beside its weights brings its own.
    """

    def __init__(self, source: str, **where: Unpack[Where]) -> None:
        model, self.preprocess, self.tokenizer = _load(source)
        super().__init__(f"open_clip:{source}", model, **where)

    @classmethod
    def of_model(
        cls,
        model: Any,
        preprocess: Any,
        tokenizer: Any = None,
        **where: Unpack[Where],
    ) -> Self:
        """The encoder of a loaded model with its preprocessing for inference and its tokenizer."""
        if tokenizer is None:
            raise EncoderError(
                "expected load_encoder(model, preprocess, tokenizer) for an open_clip model, got no tokenizer; "
                "pass open_clip.get_tokenizer(architecture)"
            )
        encoder = cls.__new__(cls)
        encoder.preprocess, encoder.tokenizer = preprocess, tokenizer
        TorchEncoder.__init__(encoder, "own open_clip model", model.eval(), **where)
        return encoder

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        return partial(_pixels, self.preprocess)

    def image_tower(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels)

    def _text_tower(self, tokens: Tensor) -> Tensor:
        return self.model.encode_text(tokens)

    def _tokens(self, prompts: list[str]) -> Tensor:
        limit = self.tokenizer.context_length
        if long := [prompt for prompt in prompts if self._length(prompt) > limit]:
            raise LabelError(f"expected texts of at most {limit} tokens, got {long[0][:60]!r}...; shorten the text")
        return self.tokenizer(prompts)

    def _length(self, prompt: str) -> int:
        inner = getattr(self.tokenizer, "tokenizer", None)  # a wrapped transformers tokenizer counts its own ends
        return len(inner(prompt).input_ids) if inner else len(self.tokenizer.encode(prompt)) + 2

    def _settings(self) -> str:
        return f"{self.name} {self.preprocess}"


def _pixels(preprocess: Any, batch: Sequence[Image]) -> Tensor:
    return torch.stack([preprocess(crop_narrow(image.pixels)) for image in batch])


def _load(source: str) -> tuple[Any, Any, Any]:
    open_clip = import_extra("open_clip", "open-clip")
    if Path(source).is_dir():
        return _create_model(open_clip, f"local-dir:{source}")
    architecture, slash, weights = source.partition("/")
    if not slash or (architecture, weights) not in open_clip.list_pretrained():
        known = ", ".join(f"{name}/{tag}" for name, tag in open_clip.list_pretrained()[:5])
        raise EncoderError(
            f"expected open_clip:ARCHITECTURE/PRETRAINED or a folder, got {source!r}; for example {known}"
        )
    # weights trained with QuickGELU silently lose accuracy with the plain one, and open_clip only warns
    quick = bool(open_clip.get_pretrained_cfg(architecture, weights).get("quick_gelu"))
    return _create_model(open_clip, architecture, pretrained=weights, force_quick_gelu=quick)


def _create_model(open_clip: Any, name: str, **options: Any) -> tuple[Any, Any, Any]:
    try:
        model, preprocess = open_clip.create_model_from_pretrained(name, **options)
        return model.eval(), preprocess, open_clip.get_tokenizer(name)
    except (RuntimeError, OSError, ValueError) as error:
        raise EncoderError(
            f"expected open_clip to load {name} with its weights, got {str(error)[:200]}; "
            "check the network, or the folder's open_clip_config.json and weights"
        ) from error
