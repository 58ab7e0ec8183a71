"""Triton kernels that resize pictures of different sizes in one launch: first along rows, then along columns.

Each picture has a row of numbers (`resize.PlanRow`) with the addresses of its pixels and of its two tables of weights.
Sums are whole numbers, rounded to 8 bits after each of the two: results are those of Pillow bit for bit, but for
pictures about twice as tall as wide, whose columns Pillow 13 resizes first.
"""

from unseen.gpu.triton_import import tl, triton


@triton.jit
def rounded(total, BITS: tl.constexpr):
    """Sums of weights and pixels as pixels."""
    return tl.minimum(tl.maximum(total >> BITS, 0), 255).to(tl.uint8)


@triton.jit
def resize_rows(
    plan, between, FIELDS: tl.constexpr, CROP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Write rows of pictures [3, h, w] at their new width, of each picture [3, rows, CROP]."""
    fields = plan + tl.program_id(0) * FIELDS
    rows = tl.load(fields + 7)
    if tl.program_id(1) * ROWS < rows:
        picture = tl.load(fields).to(tl.pointer_type(tl.uint8))
        height, width = tl.load(fields + 1), tl.load(fields + 2)
        table, taps = tl.load(fields + 3).to(tl.pointer_type(tl.int32)), tl.load(fields + 4)
        first, target = tl.load(fields + 8), between + tl.load(fields + 9)
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < CROP)[None, :]
        weights = table + column * (1 + taps)
        start = tl.load(weights, mask=column < CROP, other=0)
        source = picture + (first + row)[:, None] * width + start[None, :]
        red = tl.zeros([ROWS, COLUMNS], tl.int32) + (1 << (BITS - 1))
        green, blue = red, red
        for tap in range(taps):
            weight = tl.load(weights + 1 + tap, mask=column < CROP, other=0)[None, :]
            red += weight * tl.load(source + tap, mask=inside, other=0).to(tl.int32)
            green += weight * tl.load(source + height * width + tap, mask=inside, other=0).to(tl.int32)
            blue += weight * tl.load(source + 2 * height * width + tap, mask=inside, other=0).to(tl.int32)
        place = target + row[:, None] * CROP + column[None, :]
        tl.store(place, rounded(red, BITS), mask=inside)
        tl.store(place + rows * CROP, rounded(green, BITS), mask=inside)
        tl.store(place + 2 * rows * CROP, rounded(blue, BITS), mask=inside)


@triton.jit
def resize_columns(
    plan, between, out, FIELDS: tl.constexpr, CROP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Write pictures [CROP, CROP, 3] whose rows have their new width."""
    number = tl.program_id(0).to(tl.int64)
    fields = plan + number * FIELDS
    table, taps = tl.load(fields + 5).to(tl.pointer_type(tl.int32)), tl.load(fields + 6)
    rows, first, source = tl.load(fields + 7), tl.load(fields + 8), between + tl.load(fields + 9)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < CROP)[:, None] & (column < CROP)[None, :]
    weights = table + row * (1 + taps)
    start = tl.load(weights, mask=row < CROP, other=0) - first
    source += start[:, None] * CROP + column[None, :]
    red = tl.zeros([ROWS, COLUMNS], tl.int32) + (1 << (BITS - 1))
    green, blue = red, red
    for tap in range(taps):
        weight = tl.load(weights + 1 + tap, mask=row < CROP, other=0)[:, None]
        red += weight * tl.load(source + tap * CROP, mask=inside, other=0).to(tl.int32)
        green += weight * tl.load(source + (rows + tap) * CROP, mask=inside, other=0).to(tl.int32)
        blue += weight * tl.load(source + (2 * rows + tap) * CROP, mask=inside, other=0).to(tl.int32)
    place = out + number * CROP * CROP * 3 + (row[:, None] * CROP + column[None, :]) * 3
    tl.store(place, rounded(red, BITS), mask=inside)
    tl.store(place + 1, rounded(green, BITS), mask=inside)
    tl.store(place + 2, rounded(blue, BITS), mask=inside)
