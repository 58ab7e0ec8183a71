"""What happens to a picture before a vision tower sees it, as data that can travel with the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from unseen.errors import EncoderError
from unseen.images import Image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

LONGEST = 16  # times the shorter side: of a longer picture the middle is taken before anything is resized
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's own numbers


@dataclass(frozen=True)
class Preprocess:
    """Resize the shorter side (or, when `squash`, both), crop the centre, scale to [0, 1], standardise."""

    resize: int
    crop: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resample: str = "bicubic"
    squash: bool = False

    def __call__(self, batch: Sequence[Image]) -> Float[Tensor, "n 3 crop crop"]:
        """The pixels of a batch as a tower takes them."""
        return self.standardised(self.cropped(batch))

    def cropped(self, batch: Sequence[Image]) -> UInt8[Tensor, "n crop crop 3"]:
        """A batch resized and cropped; Pillow resizes without the interpreter lock, so threads help."""
        if not batch:
            return torch.empty(0, self.crop, self.crop, 3, dtype=torch.uint8)
        pictures = [image.pixels for image in batch]
        if len(pictures) == 1:
            return torch.from_numpy(self.pixels(pictures[0])[None].copy())
        with ThreadPoolExecutor(2) as pool:
            return torch.from_numpy(np.stack(list(pool.map(self.pixels, pictures))))

    def standardised(self, pixels: UInt8[Tensor, "n crop crop 3"]) -> Float[Tensor, "n 3 crop crop"]:
        """What `cropped` gave in [0, 1], less the mean, over the deviation, channels first."""
        scaled = pixels.permute(0, 3, 1, 2).float().div_(255)
        mean, std = (_per_channel(values, pixels.device) for values in (self.mean, self.std))
        return scaled.sub_(mean).div_(std).contiguous()

    def pixels(self, picture: Picture) -> UInt8[np.ndarray, "crop crop 3"]:
        """One picture resized and cropped, still in bytes."""
        picture = crop_narrow(picture)
        resized = picture.resize(self._size(*picture.size), RESAMPLE[self.resample])
        left, top = self._first(resized.width), self._first(resized.height)
        return np.asarray(resized.crop((left, top, left + self.crop, top + self.crop)))

    def _first(self, resized: int) -> int:
        return (resized - self.crop) // 2

    def _size(self, width: int, height: int) -> tuple[int, int]:
        if self.squash:
            return self.resize, self.resize
        # the long side rounds down, as torchvision and transformers do
        if width < height:
            return self.resize, int(self.resize * height / width)
        return int(self.resize * width / height), self.resize

    def to_json(self) -> str:
        """This as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Preprocess:
        """What `to_json` wrote."""
        try:
            fields = json.loads(text)
            return cls(**fields | {"mean": tuple(fields["mean"]), "std": tuple(fields["std"])})
        except (ValueError, KeyError, TypeError) as error:
            raise EncoderError(f"expected preprocessing as JSON, got {text[:80]!r}; export the model again") from error

    @classmethod
    def from_processor(cls, processor: object) -> Preprocess:
        """The steps of a transformers image processor, refusing those that cannot be stated here."""
        size, crops = dict(processor.size), bool(getattr(processor, "do_center_crop", False))  # type: ignore[attr-defined]
        squash = "shortest_edge" not in size
        resize = size.get("shortest_edge", size.get("height"))
        crop = int(dict(processor.crop_size)["height"]) if crops else int(resize or 0)  # type: ignore[attr-defined]
        if resize is None or (squash and size["height"] != size["width"]) or (not squash and not crops):
            raise EncoderError(f"expected an image processor with square output, got {size}; export is not possible")
        number = int(processor.resample)  # type: ignore[attr-defined]
        resample = next(name for name, value in RESAMPLE.items() if value == number)
        mean, std = tuple(processor.image_mean), tuple(processor.image_std)  # type: ignore[attr-defined]
        return cls(resize, crop, mean, std, resample, squash)


@lru_cache(16)  # numbers on their way to a GPU would wait until it has done all work before
@torch.inference_mode(mode=False)
def _per_channel(values: tuple[float, float, float], device: torch.device) -> Float[Tensor, "3 1 1"]:
    return torch.tensor(values, device=device)[:, None, None]


def crop_narrow(picture: Picture) -> Picture:
    """A picture, or the middle of one so narrow that resizing its shorter side would make it huge."""
    width, height = picture.size
    left, top = (max(0, side - LONGEST * min(width, height)) // 2 for side in (width, height))
    return picture.crop((left, top, width - left, height - top)) if left or top else picture


CLIP = Preprocess(
    resize=224, crop=224, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
)
