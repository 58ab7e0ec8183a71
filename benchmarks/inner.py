"""Whether compiling the inner loop of the CPU scan would pay: `blocked.move_row` in NumPy, numba and torch.compile.

    python benchmarks/inner.py                # those of the three that are installed

One JSON object a line: median microseconds per teaching sample of interleaved repetitions, and the largest difference
of the scales from NumPy's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from unseen.scan import blocked

TEACHERS, DIM, KAPPA = 64, 512, 0.05
Row = Callable[..., None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    candidates = {"numpy": blocked.move_row, **with_numba(), **with_torch()}
    for rows in arguments.rows:
        inputs: Any = lesson(rows)
        scales, times = {}, {name: [] for name in candidates}
        for _ in range(arguments.repeat + 1):
            for name, move_row in candidates.items():
                blocked.move_row = move_row
                started = time.perf_counter()
                _, scales[name] = blocked.learn(*inputs, kappa=KAPPA)
                times[name].append(1e6 * (time.perf_counter() - started) / TEACHERS)
        for name in candidates:
            off = float((scales[name] - scales["numpy"]).abs().max())
            each = statistics.median(times[name][1:])
            print(json.dumps({"row": name, "rows": rows, "us_per_teacher": round(each, 1), "off": off}), flush=True)


def lesson(rows: int) -> tuple[torch.Tensor, ...]:
    """Return what one block of teachers hands to `blocked.learn`."""
    generator = torch.Generator().manual_seed(0)
    bank, z = (normalize(torch.randn(n, DIM, generator=generator), dim=-1) for n in (rows, TEACHERS))
    cosine = z @ bank.T
    rate = 0.1 / torch.arange(1, TEACHERS + 1).sqrt() / KAPPA
    return cosine, z @ z.T, torch.softmax(cosine / 0.01, dim=1), rate


def with_numba() -> dict[str, Row]:
    try:
        import numba
    except ImportError:
        return {}

    @numba.njit(fastmath=True)
    def move_row(u, aim, rate, kappa, before, after, coef):  # type: ignore[no-untyped-def]
        peak, total = -np.inf, 0.0
        for c in range(len(u)):
            u[c] *= before[c]
            peak = max(peak, u[c])
        for c in range(len(u)):
            coef[c] = np.exp((u[c] - peak) / kappa)
            total += coef[c]
        share = rate / total
        for c in range(len(u)):
            move = coef[c] * share - aim[c]
            coef[c] = move / before[c]
            after[c] = before[c] / np.sqrt(max(1 + move * (move - 2 * u[c]), 1e-24))

    return {"numba": move_row}


def with_torch() -> dict[str, Row]:
    @torch.compile(dynamic=False)
    def moved(u, aim, rate, before):  # type: ignore[no-untyped-def]
        u = u * before
        move = torch.softmax(u / KAPPA, dim=0) * rate - aim
        return move / before, before / torch.sqrt((1 + move * (move - 2 * u)).clamp(min=1e-24))

    def move_row(u, aim, rate, kappa, before, after, coef):  # type: ignore[no-untyped-def]
        u, aim, before = map(torch.from_numpy, (u, aim, before))
        one, two = moved(u, aim, torch.tensor(rate, dtype=u.dtype), before)
        coef[:], after[:] = one.numpy(), two.numpy()

    return {"torch.compile": move_row}


if __name__ == "__main__":
    main()
