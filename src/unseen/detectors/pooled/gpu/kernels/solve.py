"""Triton kernels that refine the direction: the solution of a linear system for each stream."""

from unseen.gpu.triton_import import tl, triton


@triton.jit
def residual(scatter, pull, slope, left, dim, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Store pull - scatter @ slope."""
    stream = tl.program_id(1).to(tl.int64)
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    mask = (i < dim)[:, None] & (j < dim)[None, :]
    matrix = tl.load(scatter + stream * dim * dim + i[:, None] * dim + j[None, :], mask=mask, other=0.0)
    x = tl.load(slope + stream * dim + j, mask=j < dim, other=0.0)
    b = tl.load(pull + stream * dim + i, mask=i < dim, other=0.0)
    tl.store(left + stream * dim + i, b - tl.sum(matrix * x[None, :], axis=1), mask=i < dim)


@triton.jit
def correct(
    inverse, left, pull, slope, error, dim,
    ROWS: tl.constexpr, DIM: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Add inverse @ left to the slope, or begin with inverse @ pull; at last keep the largest relative error so far."""
    stream = tl.program_id(1).to(tl.int64)
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM)
    mask = (i < dim)[:, None] & (j < dim)[None, :]
    matrix = tl.load(inverse + stream * dim * dim + i[:, None] * dim + j[None, :], mask=mask, other=0.0)
    r = tl.load((pull if FIRST else left) + stream * dim + j, mask=j < dim, other=0.0)
    value = tl.sum(matrix * r.to(matrix.dtype)[None, :], axis=1).to(tl.float64)
    if not FIRST:
        value += tl.load(slope + stream * dim + i, mask=i < dim, other=0.0)
    tl.store(slope + stream * dim + i, value, mask=i < dim)
    if LAST and tl.program_id(0) == 0:
        b = tl.load(pull + stream * dim + j, mask=j < dim, other=0.0)
        off = tl.sqrt(tl.sum(r * r, axis=0) / tl.maximum(tl.sum(b * b, axis=0), 1e-60))
        most = tl.load(error + stream)
        tl.store(error + stream, tl.where((off <= most) | (most != most), most, off))  # not a number stays one
