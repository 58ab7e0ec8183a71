"""Features as people hold them in Python: torch, numpy, lists of vectors; or images, with an encoder for them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.encoders import Encoder
from unseen.errors import FeatureError
from unseen.images.inputs import as_images


class KeyedFeatures(NamedTuple):
    """Vectors of consecutive samples, and what the samples are called where that is known."""

    z: Tensor
    keys: Sequence[str] = ()


def as_features(value: Any, encoder: Encoder | None = None, *, most_dims: int = 2) -> KeyedFeatures:
    """Features as a tensor; images become features where there is an encoder.

    Arrays of at most `most_dims` dimensions are features; those of more, and grey ones of whole numbers, are images.

    >>> as_features(np.eye(3)).z.shape
    torch.Size([3, 3])
    """
    if (z := vectors(value, most_dims)) is not None:
        return KeyedFeatures(z)
    if encoder is None:
        raise FeatureError(
            f"expected features [n, d] as a torch tensor, numpy array or list of vectors, got {_kind(value)}; for "
            "images pass encoder.images(...), or make the session with Session(space, encoder=encoder)"
        )
    images = as_images(value)
    keys = [image.path for image in images]
    return KeyedFeatures(encoder.images(images), keys if all(keys) else ())


def vectors(value: Any, most_dims: int = 2) -> Tensor | None:
    """A value that holds vectors as a tensor, None for anything else."""
    if isinstance(value, Tensor):
        return value if value.ndim <= most_dims and value.is_floating_point() else None
    if isinstance(value, np.ndarray):
        is_numeric = value.ndim <= most_dims and np.issubdtype(value.dtype, np.floating)
        return torch.from_numpy(np.ascontiguousarray(value)) if is_numeric else None
    if isinstance(value, list | tuple) and value and all(map(_is_vector, value)):
        return torch.stack([torch.as_tensor(row) for row in value])
    return None


def _is_vector(row: Any) -> bool:
    if isinstance(row, Tensor | np.ndarray):
        return row.ndim == 1
    return isinstance(row, list | tuple) and bool(row) and all(isinstance(number, float) for number in row)


def _kind(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {type(value[0]).__name__}" if value else "an empty list"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" + (f" of shape {list(shape)}" if shape is not None else "")
