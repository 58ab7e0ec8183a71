"""Which models unseen knows by name, how each is loaded, and whether it is on this machine."""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unseen.encoders.base import SplitEncoder
from unseen.encoders.offline import encoder as offline
from unseen.encoders.runtimes import check_runtime, measured_rates
from unseen.encoders.torch_encoder import fast_dtype
from unseen.errors import EncoderError, MissingExtra, SettingError
from unseen.progress import Progress, no_progress

SHORT_NAMES: Mapping[str, str] = {
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14@336": "openai/clip-vit-large-patch14-336",
}

# prefix -> module and class, imported only when named; each takes what follows the prefix, device=, dtype=, runtime=
BACKENDS: Mapping[str, tuple[str, str]] = {
    "offline": ("unseen.encoders.offline.encoder", "OfflineEncoder"),
    "hub": ("unseen.encoders.hub", "HubEncoder"),
    "open_clip": ("unseen.encoders.open_clip", "OpenClipEncoder"),
    "onnx": ("unseen.encoders.onnx", "OnnxEncoder"),
}
PACKAGES = ("PIL", "transformers"), ("PIL", "transformers", "onnx")  # of any model here, and of the offline one
OWN_MODELS: Mapping[str, str] = {"get_image_features": "hub", "encode_image": "open_clip"}  # method -> backend
OFFLINE = ("offline", "offline-b16")  # short, and as a label space names it: every encoder loads by its own name


def load_encoder(
    name: str | Path | torch.nn.Module,
    *parts: Any,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    runtime: str | None = None,
) -> SplitEncoder:
    """The encoder called `name`, or the one of a model that is loaded already.

    `name` is "offline", a short name such as "ViT-B/16", a hub id, a local folder, "open_clip:RN50/openai", or an
    ONNX file of `unseen models export`. A CLIP model of transformers comes with its processor,
    `load_encoder(model, processor)`, one of open_clip with `load_encoder(model, preprocess, tokenizer)`; it is moved
    to `device`. `dtype` is that of the large products, `runtime` what runs the image tower on a CPU: "openvino",
    "onnxruntime" or "torch" (the fastest of those that are installed).

    >>> encoder = load_encoder("offline")            # doctest: +SKIP
    >>> encoder.texts(["a photo of a cat."]).shape   # doctest: +SKIP
    torch.Size([1, 512])
    >>> load_encoder("offline", 1)
    Traceback (most recent call last):
    unseen.errors.SettingError: expected load_encoder('offline') alone, got 1 more; pass the model itself
    """
    if not isinstance(name, str | Path):
        return _of_model(name, parts, device=device, dtype=dtype, runtime=runtime)
    if parts:
        raise SettingError(f"expected load_encoder({str(name)!r}) alone, got {len(parts)} more; pass the model itself")
    backend, rest = resolve_name(name)
    module, cls = BACKENDS[backend]
    make: Callable[..., SplitEncoder] = getattr(importlib.import_module(module), cls)
    return make(rest, device=device, dtype=dtype, runtime=runtime)


def _of_model(model: Any, parts: Sequence[Any], **where: Any) -> SplitEncoder:
    """The encoder of a loaded model; the methods that the model has show its backend."""
    method = next((method for method in OWN_MODELS if hasattr(model, method)), None)
    if method is None or not 1 <= len(parts) <= 2:
        raise EncoderError(
            "expected load_encoder(model, processor) with a CLIP model of transformers, or load_encoder(model, "
            f"preprocess, tokenizer) with one of open_clip, got {type(model).__name__} and {len(parts)} more; for any "
            "other model write a class with `images` and `texts` (unseen.encoders.Encoder)"
        )
    module, cls = BACKENDS[OWN_MODELS[method]]
    make: Callable[..., SplitEncoder] = getattr(importlib.import_module(module), cls).of_model
    return make(model, *parts, **where)


def resolve_name(name: str | Path) -> tuple[str, str]:
    """The backend that knows `name`, and what that backend calls it."""
    text = str(name)
    prefix, colon, rest = text.partition(":")
    if text in OFFLINE:
        return "offline", ""
    if text.startswith("offline-"):
        raise SettingError(
            f"expected offline, got {text!r}: towers in eight bits or with merged tokens are no longer made; encode "
            "again and build the label space anew with offline"
        )
    if colon and prefix in BACKENDS:
        return prefix, rest
    if text.endswith(".onnx"):
        return "onnx", text
    if not text.strip():
        raise SettingError(f"expected the name of an encoder, got nothing; try offline or {next(iter(SHORT_NAMES))}")
    if text not in SHORT_NAMES and "/" not in text and not Path(text).exists():
        _refuse_misspelt(text)
    return "hub", SHORT_NAMES.get(text, text)


def _refuse_misspelt(name: str) -> None:
    """Refuse a name that is nearly one of a model here: letters and digits alone are compared."""
    plain = {re.sub(r"\W", "", known).lower(): known for known in MODELS}
    if near := difflib.get_close_matches(re.sub(r"\W", "", name).lower(), plain, cutoff=0.7):
        raise SettingError(f"expected the name of an encoder, got {name!r}; did you mean {plain[near[0]]}?")


@dataclass(frozen=True)
class Model:
    """A model as `unseen models` shows it."""

    name: str
    source: str
    dim: int | None
    megabytes: int | None
    note: str

    @property
    def is_ready(self) -> bool:
        """Whether it can be loaded without a network."""
        if self.name == "offline":
            return offline.is_fetched()
        return Path(self.source).exists() or bool(self.rates) or _in_hub_cache(self.source)

    @property
    def lacks(self) -> list[str]:
        """The packages without which it cannot run here, although it may be downloaded."""
        return [package for package in PACKAGES[self.name == "offline"] if importlib.util.find_spec(package) is None]

    def fetch(self, progress: Progress = no_progress, *, runtime: str | None = None) -> None:
        """Download it, unless it is here; refuse where it could not run, or not in this runtime."""
        if lacks := self.lacks:
            raise MissingExtra(lacks[0], "encode")
        check_runtime(runtime, torch.device("cpu"))
        if self.name == "offline":
            offline.fetch(progress)
        else:
            load_encoder(self.name, device="cpu")

    @property
    def rates(self) -> Mapping[str, float]:
        """Images per second of each runtime on the CPU of this machine; none where nothing was measured."""
        if self.name == "offline":
            return measured_rates(OFFLINE[1], fast_dtype(torch.device("cpu")))
        return measured_rates(self.source, torch.float32)

    def measure(self, runtime: str | None = None) -> None:
        """Measure the runtimes that are installed, by which later runs choose; one alone, and they take that one."""
        encoder: Any = load_encoder(self.name, device="cpu", runtime=runtime)
        encoder.runtimes.measure()


MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model("offline", "package index", 512, 162, "CLIP ViT-B/16 images; texts from a sentence encoder, near CLIP's"),
        Model("ViT-B/16", SHORT_NAMES["ViT-B/16"], 512, 600, "the paper's main backbone"),
        Model("ViT-B/32", SHORT_NAMES["ViT-B/32"], 512, 605, "a quarter of the work of ViT-B/16"),
        Model("ViT-L/14", SHORT_NAMES["ViT-L/14"], 768, 1710, "more accurate, five times the work"),
        Model("ViT-L/14@336", SHORT_NAMES["ViT-L/14@336"], 768, 1710, "the same at 336 pixels"),
    )
}


def find_model(name: str) -> Model:
    """The model called `name`."""
    if name not in MODELS:
        _refuse_misspelt(name)
    if name in MODELS:
        return MODELS[name]
    backend, source = resolve_name(name)
    if backend == "onnx" or not (backend == "open_clip" or "/" in name or Path(name).is_dir()):
        raise SettingError(f"expected one of {', '.join(MODELS)}, a hub id, a folder or open_clip:..., got {name!r}")
    return Model(name, name if backend == "open_clip" else source, None, None, "a model of your own or of a hub")


def _in_hub_cache(repository: str) -> bool:
    if importlib.util.find_spec("huggingface_hub") is None or ":" in repository:
        return False
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repository, "config.json"), str)
