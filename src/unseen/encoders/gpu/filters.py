"""The weights with which Pillow resizes a row of pixels, as whole numbers."""

import numpy as np
from jaxtyping import Float, Int

from unseen.encoders.preprocess import ResizedAxis

BITS = 22  # weights are multiples of 2^-22, as Pillow's are for pixels of 8 bits
REACH = {"bilinear": 1.0, "bicubic": 2.0}  # of each filter, in pixels of the result
SHARPNESS = -0.5  # of the cubic; other libraries have -0.75


def axis_weights(axis: ResizedAxis, count: int, resample: str) -> Int[np.ndarray, "count one_plus_taps"]:
    """For each of `count` resized pixels its first pixel of the picture and the weights from there on.

    Weights past the edge of the picture are left out, so that every place that has one can be read.
    """
    scale = axis.size / axis.resized
    wide = max(scale, 1.0)
    centre = (axis.first + np.arange(count) + 0.5) * scale
    low = np.maximum(np.trunc(centre - REACH[resample] * wide + 0.5), 0).astype(np.int64)
    high = np.minimum(np.trunc(centre + REACH[resample] * wide + 0.5), axis.size).astype(np.int64)
    taps = int((high - low).max())
    start = np.minimum(low, axis.size - taps)
    place = start[:, None] + np.arange(taps)
    is_inside = (place >= low[:, None]) & (place < high[:, None])
    weight = np.where(is_inside, _curve((place - centre[:, None] + 0.5) / wide, resample), 0.0)
    weight /= np.cumsum(weight, axis=1)[:, -1:]
    whole = np.trunc(weight * (1 << BITS) + np.copysign(0.5, weight))
    return np.concatenate([start[:, None] + axis.margin, whole], axis=1).astype(np.int32)


def _curve(x: Float[np.ndarray, "*n"], resample: str) -> Float[np.ndarray, "*n"]:
    x = np.abs(x)
    if resample == "bilinear":
        return np.maximum(1 - x, 0)
    near = ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * SHARPNESS
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
