"""Pictures of any sizes on a GPU, resized and cropped as Pillow does it, by two launches of kernels for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from unseen.encoders.gpu.filters import BITS, REACH, axis_weights
from unseen.encoders.preprocess import Preprocess, ResizedAxis
from unseen.errors import EncoderError

ROWS, COLUMNS = 16, 64  # pixels of one program
TABLES = 8192  # sizes of pictures whose weights are kept on the GPU


class AxisWeights(NamedTuple):
    """The weights of one axis on the GPU, and which pixels they read."""

    values: Int[Tensor, "count one_plus_taps"]
    first: int
    end: int

    @property
    def taps(self) -> int:
        """How many pixels make one."""
        return self.values.shape[1] - 1


class PlanRow(NamedTuple):
    """What the kernels know of one picture."""

    picture: int  # address
    height: int
    width: int
    columns: int  # address of the weights of each new column
    column_taps: int
    rows: int  # address of the weights of each new row
    row_taps: int
    needed: int  # rows of the picture that are read
    first: int  # the first of them
    offset: int  # where they lie at their new width


class SizeTables(NamedTuple):
    """What pictures of one size have in common."""

    places: tuple[int, int, int, int, int, int]  # of a `PlanRow`, from `columns` to `first`
    needed: int
    held: tuple[Tensor, Tensor]  # the weights, as long as their addresses are in use


class GpuResize:
    """Resizes and crops pictures as `Preprocess.cropped` does."""

    def __init__(self, steps: Preprocess, device: torch.device) -> None:
        if steps.resample not in REACH or steps.crop > steps.resize:
            raise EncoderError(
                f"expected bicubic or bilinear resizing to at least the crop for decoding on a GPU, got {steps}; "
                "leave --decode out"
            )
        if device.type == "cuda" and find_spec("triton") is None:
            raise EncoderError("expected Triton for decoding on a GPU, got none; pip install triton")
        self.steps, self.device = steps, device
        self._table = lru_cache(TABLES)(self._make_table)
        self._tables = lru_cache(TABLES)(self._make_tables)

    def __call__(self, pictures: Sequence[UInt8[Tensor, "3 h w"]]) -> UInt8[Tensor, "n crop crop 3"]:
        """A batch of pictures at the size of the tower."""
        crop = self.steps.crop
        out = torch.empty(len(pictures), crop, crop, 3, dtype=torch.uint8, device=self.device)
        if pictures:
            self._launch(self._plan(pictures), out)
        return out

    def _launch(self, rows: Sequence[PlanRow], out: Tensor) -> None:
        from unseen.encoders.gpu import kernels  # here, because Triton takes a while to import

        crop = self.steps.crop
        tall, sum_of_rows = max(row.needed for row in rows), rows[-1].offset + 3 * crop * rows[-1].needed
        plan = torch.from_numpy(np.array(rows, dtype=np.int64)).to(self.device)
        between = torch.empty(sum_of_rows, dtype=torch.uint8, device=self.device)
        sizes = (len(PlanRow._fields), crop, ROWS, COLUMNS, BITS)
        across = -(-crop // COLUMNS)
        kernels.resize_rows[(len(rows), -(-tall // ROWS), across)](plan, between, *sizes)
        kernels.resize_columns[(len(rows), -(-crop // ROWS), across)](plan, between, out, *sizes)

    def _plan(self, pictures: Sequence[Tensor]) -> list[PlanRow]:
        rows, offset = [], 0
        for picture in pictures:
            _, height, width = picture.shape
            tables = self._tables(width, height)
            rows.append(PlanRow(picture.data_ptr(), height, width, *tables.places, offset))
            offset += 3 * self.steps.crop * tables.needed
        return rows

    def _make_tables(self, width: int, height: int) -> SizeTables:
        columns, lines = map(self._table, self.steps.axes(width, height))
        needed = lines.end - lines.first
        weights = columns.values.data_ptr(), columns.taps, lines.values.data_ptr(), lines.taps
        return SizeTables((*weights, needed, lines.first), needed, (columns.values, lines.values))

    def _make_table(self, axis: ResizedAxis) -> AxisWeights:
        weights = axis_weights(axis, self.steps.crop, self.steps.resample)
        end = int(weights[:, 0].max()) + weights.shape[1] - 1
        return AxisWeights(torch.from_numpy(weights).to(self.device), int(weights[:, 0].min()), end)
