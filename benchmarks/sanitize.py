"""One small scan for a memory checker: the GPU's `learn` with four rows per thread, in float64, against the naive loop.

    compute-sanitizer --tool racecheck --kernel-name kns=learn python benchmarks/sanitize.py
    compute-sanitizer --tool memcheck python benchmarks/sanitize.py

Banks of more than 12,288 rows use that form of the kernel. Two early versions of it gave wrong banks.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import normalize

from unseen.scan import naive
from unseen.scan.cuda import scan as cuda
from unseen_bench.run import command


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--rows", type=int, default=12_400)
    parser.add_argument("--samples", type=int, default=40, help="every one teaches: a panel is 8 of them")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    arguments = command.parse(parser)
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    bank, z = (
        normalize(torch.randn(n, arguments.dim, generator=generator, dtype=torch.float64), dim=-1).to("cuda", dtype)
        for n in (arguments.rows, arguments.samples)
    )
    step = (0.1 / torch.arange(1, arguments.samples + 1).double().sqrt()).to("cuda", dtype)
    inputs = bank, z @ bank.T / 0.01, z, step
    got, expected = (backend.scan(*inputs, kappa=0.05, tau=0.01) for backend in (cuda, naive))
    error = float((got.bank - expected.bank).abs().max())
    limit = 1e-11 if dtype == torch.float64 else 1e-5
    print(f"{arguments.rows:,} rows in {arguments.dtype}: largest error of the bank {error:.2e}, at most {limit:g}")
    sys.exit(not error <= limit)


if __name__ == "__main__":
    main()
