"""Pillow in place of what only a GPU has: the decoder for JPEG files."""

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

BROKEN = b"broken"  # begins a file that the decoder refuses, and with it the whole batch


def decode_by_pillow(files: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    data = [file.numpy().tobytes() for file in files]
    if any(file.startswith(BROKEN) for file in data):
        raise RuntimeError("Failed to decode batch")
    pictures = [Pillow.open(io.BytesIO(file)).convert("RGB") for file in data]
    return [torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) for picture in pictures]
