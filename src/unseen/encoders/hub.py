"""Any CLIP- or SigLIP-like dual encoder that transformers can load, by hub id or from a local folder."""

import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack
from urllib.parse import urlparse

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.encoders.preprocess import Preprocess, crop_narrow
from unseen.encoders.torch_encoder import (
    TorchEncoder,
    Where,
    explained_imports,
    patch_vectors,
    patches_inside,
    window_vectors,
)
from unseen.errors import EncoderError, LabelError, import_extra
from unseen.images import Image
from unseen.images.regions import Box

OWN_MODEL = "own model"  # the name of one that was loaded from nowhere
TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
IGNORED_SETTINGS = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
)  # not part of the function


class HubEncoder(TorchEncoder):
    """A dual encoder with the processor and the tokenizer that lie beside its weights."""

    def __init__(self, source: str, **where: Unpack[Where]) -> None:
        model, self.processor, self.tokenizer = _load(source)
        super().__init__(source, model, **where)

    @classmethod
    def of_model(
        cls,
        model: Any,
        processor: Any,
        tokenizer: Any = None,
        **where: Unpack[Where],
    ) -> Self:
        """The encoder of a loaded model with its processor, or with its image processor and its tokenizer."""
        tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        if tokenizer is None:
            raise EncoderError(
                f"expected a processor with a tokenizer, got {type(processor).__name__}; "
                "pass load_encoder(model, image_processor, tokenizer)"
            )
        encoder = cls.__new__(cls)
        encoder.processor, encoder.tokenizer = getattr(processor, "image_processor", processor), tokenizer
        TorchEncoder.__init__(encoder, model.name_or_path or OWN_MODEL, model.eval(), **where)
        return encoder

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        return partial(_pixels, self.processor)

    @property
    def side(self) -> int:
        try:
            return self.steps.resize
        except EncoderError:  # other steps than a resize and a crop
            return 0

    @property
    def steps(self) -> Preprocess:
        """The processor's steps; those that cannot be stated as data are refused."""
        return Preprocess.from_processor(self.processor)

    def patches(self, batch: Sequence[Image]) -> Float[Tensor, "n p d"]:
        """One unit vector per patch (GL-MCM)."""
        self._check_patches()
        return patch_vectors(self.model, self.prepare(batch).to(self.device, self.dtype))

    def windows(self, batch: Sequence[Image], boxes: Sequence[Box]) -> Float[Tensor, "n w d"]:
        """One unit vector per window of each image, in shares of width and height: the tower sees an image once."""
        self._check_patches()
        squashed = replace(self.steps, squash=True, resize=self.steps.crop)
        pixels = squashed.standardised(squashed.cropped(batch)).to(self.device, self.dtype)
        side = self.steps.crop // self.model.config.vision_config.patch_size
        return window_vectors(self.model, pixels, patches_inside(boxes, side)).cpu()

    def _check_patches(self) -> None:
        """Refuse a tower without the parts that vectors of patches and windows are made with."""
        vision: Any = getattr(self.model, "vision_model", None)
        if not hasattr(self.model, "visual_projection") or not hasattr(vision, "post_layernorm"):
            kind = self.model.config.model_type
            raise EncoderError(f"expected a CLIP vision transformer for patch features, got {kind}; use ViT-B/16")

    def image_tower(self, pixels: Tensor) -> Tensor:
        return _pooled_output(self.model.get_image_features(pixel_values=pixels))

    def _text_tower(self, tokens: Any) -> Tensor:
        return _pooled_output(self.model.get_text_features(**tokens))

    def _tokens(self, prompts: list[str]) -> Any:
        limit = min(self.tokenizer.model_max_length, self.model.config.text_config.max_position_embeddings)
        # SigLIP was trained on texts padded to its whole context, and reads its summary from the last place
        whole = self.model.config.model_type.startswith("siglip")
        tokens = self.tokenizer(
            prompts, padding="max_length" if whole else True, max_length=limit if whole else None, return_tensors="pt"
        )
        if tokens["input_ids"].shape[1] > limit:
            longest = max(prompts, key=len)
            raise LabelError(
                f"expected texts of at most {limit} tokens, got {tokens['input_ids'].shape[1]} in "
                f"{longest[:60]!r}...; shorten the text"
            )
        return tokens

    def _settings(self) -> str:
        config = _without(self.model.config.to_dict(), IGNORED_SETTINGS)
        parts = [config, self.processor.to_dict(), self.tokenizer.get_vocab(), self.tokenizer.model_max_length]
        return json.dumps(parts, sort_keys=True, default=str)


def _pixels(processor: Any, batch: Sequence[Image]) -> Tensor:
    pixels: Tensor = processor(images=[crop_narrow(image.pixels) for image in batch], return_tensors="pt")[
        "pixel_values"
    ]
    return pixels


def _load(source: str) -> tuple[Any, Any, Any]:
    transformers = import_extra("transformers", "encode")
    if Path(source).is_dir():
        _check_folder(Path(source))
        return _load_parts(transformers, source, local=True)
    try:
        return _load_parts(transformers, source, local=True)  # a cached model needs no network
    except EncoderError:
        if not _hub_reachable():
            raise _model_missing(source, "no network to fetch it") from None
        return _load_parts(transformers, source, local=False)


def _load_parts(transformers: Any, source: str, *, local: bool) -> tuple[Any, Any, Any]:
    where = {"local_files_only": local}
    try:
        with explained_imports():
            model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32, **where).eval()
            # one backend everywhere: torchvision resizes differently, and would be picked up where it is installed
            processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **where)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **where)
    except (OSError, ValueError) as error:
        raise _model_missing(source, str(error).splitlines()[0]) from error
    if not hasattr(model, "get_image_features") or not hasattr(model, "get_text_features"):
        raise EncoderError(
            f"expected a model with an image and a text tower, got {type(model).__name__} in {source}; try ViT-B/16"
        )
    return model, processor, tokenizer


def _model_missing(source: str, reason: str) -> EncoderError:
    return EncoderError(
        f"expected the model {source!r} in the cache, at the hub or in a folder, got none ({reason.rstrip('.')}); "
        "without a hub, run `unseen models fetch offline` once and use the encoder offline"
    )


def _check_folder(folder: Path) -> None:
    """Refuse a folder whose preprocessing or tokenizer would have to be guessed."""
    present = {path.name for path in folder.iterdir()}
    missing = [name for name in ("config.json",) if name not in present]
    if not present & {"preprocessor_config.json", "processor_config.json"}:
        missing.append("preprocessor_config.json")
    if not present.intersection(TOKENIZERS):
        missing.append("tokenizer.json")
    if missing:
        raise EncoderError(
            f"expected a model folder with its own preprocessing and tokenizer, got no {' and no '.join(missing)} in "
            f"{folder}; save the processor beside the model (processor.save_pretrained)"
        )


def _hub_reachable() -> bool:
    """Tell in three seconds what the hub's client finds out after five retries."""
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return False
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    url = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection((url.hostname, url.port or 443), timeout=3).close()
    except OSError:
        return False
    return True


def _pooled_output(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output  # transformers 5 returns an object


def _without(config: Any, names: Iterable[str]) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: _without(value, names) for key, value in config.items() if key not in names}
