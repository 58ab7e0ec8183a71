"""Pictures as people hold them in Python: paths, bytes, Pillow, numpy, torch, rows of data sets; batches of those."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unseen.errors import ImageError, import_extra
from unseen.images.decode import decode, in_rgb, read_file
from unseen.images.entry import Batch, Entry, Image
from unseen.storage.remote import location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

ImageBatch = Any  # what `as_images` takes
COLUMNS = ("image", "img", "pixels", "pixel_values")  # where a row of a data set has its picture
ACCEPTED = (
    "a path, bytes of an image file, an open file, a Pillow image, "
    "a numpy array [h, w, 3] or [h, w] (uint8, or float from 0 to 1), "
    "a torch tensor [3, h, w] or [h, w] of such values, a row with the column 'image', or a list of these"
)


def as_images(batch: Any) -> tuple[Image, ...]:
    """A batch in any form as images; one that cannot be read is an `ImageError` that says which.

    >>> as_images(np.zeros((2, 4, 6, 3), np.uint8))[0].pixels.size
    (6, 4)
    """
    if isinstance(batch, Batch):
        return batch.images
    return tuple(one if isinstance(one, Image) else _image(i, one) for i, one in enumerate(split(batch)))


def in_memory_entry(number: int, value: Any) -> Entry:
    """A picture that the caller holds as an entry of a stream; `number` is its place."""
    return Entry(key_of(value) or f"#{number}", "", partial(as_picture, value))


def split(batch: Any) -> Iterator[Any]:
    """Yield the pictures of a batch one by one; a single picture is a batch of one."""
    if is_loader_batch(batch):
        batch = batch[0]  # the second is labels, which nothing here may see
    if isinstance(batch, Mapping) and (column := _column(batch)) and isinstance(batch[column], list | Tensor):
        batch = batch[column]  # columns of a data set, as its batches are
    if isinstance(batch, Tensor | np.ndarray):
        yield from batch if batch.ndim == 4 else (batch,)
    elif is_picture(batch):
        yield batch
    elif isinstance(batch, Iterable):
        yield from batch
    else:
        raise _unusable(batch)


def is_loader_batch(batch: Any) -> bool:
    """Whether this is what a DataLoader over pairs yields: pixels [n, ...], then one label for each."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        return False
    pixels, labels = batch
    both = isinstance(pixels, Tensor) and isinstance(labels, Tensor)
    return both and pixels.ndim == 4 and labels.ndim == 1 and len(pixels) == len(labels)


def is_picture(value: Any) -> bool:
    """Whether a value can only be one picture, not a batch."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim in (2, 3)
    if isinstance(value, str | Path | bytes | bytearray | memoryview | Mapping | Image):
        return True
    return callable(getattr(value, "read", None)) or _is_pillow(value)


def key_of(value: Any) -> str:
    """What a picture is called, "" for one without a name."""
    if isinstance(value, Image):
        return value.path
    if isinstance(value, Mapping):
        return key_of(value.get(_column(value)))
    return str(value) if isinstance(value, str | Path) else str(getattr(value, "filename", ""))


def as_picture(value: Any) -> Picture:
    """One picture, upright and in RGB, out of what holds it."""
    if isinstance(value, Image):
        return value.pixels
    if isinstance(value, str | Path):
        where = location(value)
        if isinstance(where, Path) and where.is_dir():
            raise ImageError("a folder, not an image; read_images(folder) yields its images in batches")
        return decode(read_file(where))
    if isinstance(value, bytes | bytearray | memoryview):
        return decode(bytes(value))
    if callable(getattr(value, "read", None)):
        if isinstance(value, io.TextIOBase):
            raise ImageError("expected a file opened for bytes, got one opened for text; use open(path, 'rb')")
        return decode(value.read())
    if isinstance(value, Mapping):  # a row of a data set; Hugging Face holds it decoded, or as bytes or path
        held = value[column] if (column := _column(value)) else value.get("bytes") or value.get("path")
        if held is None:
            names, got = ", ".join(COLUMNS), sorted(value)
            raise ImageError(f"expected a row with one of the columns {names}, got {got}; pass row[...]")
        return as_picture(held)
    if isinstance(value, Tensor):
        return _of_array(_channels_last(value), "[3, h, w]", value.shape)
    if isinstance(value, np.ndarray):
        return _of_array(value, "[h, w, 3]", value.shape)
    if _is_pillow(value):
        return in_rgb(value)
    raise _unusable(value)


def _image(number: int, value: Any) -> Image:
    try:
        return Image(key_of(value), as_picture(value))
    except ImageError as error:
        name = key_of(value)
        raise ImageError(f"image {number}{f' ({name})' if name else ''}: {error}") from error


def _column(row: Mapping[str, Any]) -> str:
    return next((name for name in COLUMNS if name in row), "")


def _channels_last(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor[None] if tensor.ndim == 2 else tensor
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3):
        hint = "; pass tensor.permute(2, 0, 1)" if tensor.ndim == 3 and tensor.shape[-1] in (1, 3) else ""
        raise ImageError(f"expected a tensor of shape [3, h, w], got {list(tensor.shape)}{hint or '; ' + ACCEPTED}")
    values = tensor.detach().cpu()
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return values.permute(1, 2, 0).numpy()


def _of_array(pixels: np.ndarray[Any, Any], expected: str, shape: Any) -> Picture:
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4) or not pixels.size:
        hint = "pass array.transpose(1, 2, 0)" if pixels.ndim == 3 and pixels.shape[0] in (1, 3) else ACCEPTED
        raise ImageError(f"expected an array of shape {expected}, got {list(shape)}; {hint}")
    values = _bytes(pixels)
    pillow = import_extra("PIL.Image", "encode")
    return in_rgb(pillow.fromarray(values[..., 0] if values.shape[-1] == 1 else np.ascontiguousarray(values)))


def _bytes(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pixels with 8 bits; refuse values whose range would have to be guessed."""
    if pixels.dtype == np.uint8:
        return pixels
    if not np.issubdtype(pixels.dtype, np.floating):
        raise ImageError(f"expected pixels as uint8 or float, got {pixels.dtype}; convert them with .astype('uint8')")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):  # NaN ends up here too
        raise ImageError(
            f"expected float pixels from 0 to 1, got {low:.3g} to {high:.3g}; divide by 255, undo the standardisation "
            "(mean, std), or pass prepared pixels to encoder.vectors"
        )
    return (255 * pixels).round().astype(np.uint8)


def _is_pillow(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "PIL"


def _unusable(value: Any) -> ImageError:
    return ImageError(f"expected {ACCEPTED}, got {type(value).__name__}; convert it to one of these")
