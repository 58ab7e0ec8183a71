"""Any CLIP- or SigLIP-like dual encoder that transformers can load, by hub id or from a local folder."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.device import gpu_dtype, pick_device
from unseen.errors import EncoderError, LabelError, MissingExtra
from unseen.images import Image

TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
PASSING = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures")  # not part of the function
TEXTS = 256  # prompts per forward pass


class HubEncoder:
    """A dual encoder with the processor and the tokenizer that lie beside its weights."""

    def __init__(
        self, source: str, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        self.name = source
        self.device = pick_device(device)
        self.dtype = dtype or gpu_dtype(self.device)
        self.model, self.processor, self.tokenizer = _load(source)
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
        return self.vectors(self._pixels(batch))

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """Return the model's own processor."""
        return partial(_processed, self.processor)

    def vectors(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """Return one unit vector per prepared image."""
        with torch.inference_mode():
            return _unit(self.model.get_image_features(pixel_values=pixels.to(self.device, self.dtype)))

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """Return one unit vector per text; a text that does not fit the context is an error, not cut."""
        if isinstance(prompts, str):
            raise LabelError(f"expected a list of texts, got one string; pass [{prompts!r}]")
        starts = range(0, len(prompts), TEXTS)
        parts = [self._texts(prompts[start : start + TEXTS]) for start in starts]
        return torch.cat(parts) if parts else torch.empty(0, self.dim, device=self.device)

    def patches(self, batch: Sequence[Image]) -> Float[Tensor, "n p d"]:
        """Return one unit vector per patch: in the last block each token attends to itself alone (GL-MCM)."""
        vision: Any = getattr(self.model, "vision_model", None)
        if not hasattr(self.model, "visual_projection") or not hasattr(vision, "post_layernorm"):
            kind = self.model.config.model_type
            raise EncoderError(f"expected a CLIP vision transformer for patch features, got {kind}; use ViT-B/16")
        with torch.inference_mode():
            states = vision(pixel_values=self._pixels(batch), output_hidden_states=True).hidden_states
            values = _values(vision.encoder.layers[-1], states[-2])[:, 1:]
            return normalize(self.model.visual_projection(vision.post_layernorm(values)).float(), dim=-1)

    def _texts(self, prompts: Sequence[str]) -> Tensor:
        tokens = self._tokens(list(prompts))
        with torch.inference_mode():
            return _unit(self.model.get_text_features(**tokens.to(self.device)))

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

    def _pixels(self, batch: Sequence[Image]) -> Tensor:
        return _processed(self.processor, batch).to(self.device, self.dtype)

    def _fingerprint(self) -> str:
        config = _without(self.model.config.to_dict(), PASSING)
        parts = [config, self.processor.to_dict(), self.tokenizer.get_vocab(), self.tokenizer.model_max_length]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.float().contiguous().flatten().numpy().tobytes())
        return digest.hexdigest()


def _processed(processor: Any, batch: Sequence[Image]) -> Tensor:
    pixels: Tensor = processor(images=[image.pixels for image in batch], return_tensors="pt")["pixel_values"]
    return pixels


def _load(source: str) -> tuple[Any, Any, Any]:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "encode") from error
    if Path(source).is_dir():
        _check_folder(Path(source))
        return _parts(transformers, source, local=True)
    try:
        return _parts(transformers, source, local=True)  # a cached model needs no network
    except EncoderError:
        if not _hub_reachable():
            raise _absent(source, "no network to fetch it") from None
        return _parts(transformers, source, local=False)


def _parts(transformers: Any, source: str, *, local: bool) -> tuple[Any, Any, Any]:
    where = {"local_files_only": local}
    try:
        model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32, **where).eval()
        # one backend everywhere: torchvision resizes differently, and would be picked up where it is installed
        processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **where)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **where)
    except (OSError, ValueError) as error:
        raise _absent(source, str(error).splitlines()[0]) from error
    if not hasattr(model, "get_image_features") or not hasattr(model, "get_text_features"):
        raise EncoderError(
            f"expected a model with an image and a text tower, got {type(model).__name__} in {source}; try ViT-B/16"
        )
    return model, processor, tokenizer


def _absent(source: str, reason: str) -> EncoderError:
    return EncoderError(
        f"expected the model {source!r} in the cache, at the hub or in a folder, got none ({reason.rstrip('.')}); "
        "without a hub, run `unseen models fetch offline` once and use `--encoder offline`"
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


def _unit(output: Any) -> Tensor:
    features = output if isinstance(output, Tensor) else output.pooler_output  # transformers 5 returns an object
    return normalize(features.float(), dim=-1)


def _values(layer: Any, x: Tensor) -> Tensor:
    x = x + layer.self_attn.out_proj(layer.self_attn.v_proj(layer.layer_norm1(x)))
    moved: Tensor = x + layer.mlp(layer.layer_norm2(x))
    return moved


def _without(config: Any, names: Iterable[str]) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: _without(value, names) for key, value in config.items() if key not in names}
