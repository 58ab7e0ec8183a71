"""Whether compiling the inner loop of the CPU scan would pay: `blocked.move_row` in NumPy, numba and torch.compile.

    python benchmarks/inner.py                # those of the three that are installed

Median microseconds per teaching sample of interleaved repetitions, and the largest difference of the scales from
NumPy's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from unseen.scan import blocked
from unseen_bench.run import command
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row
from unseen_bench.run.timing import alternating_seconds

TEACHERS, DIM, KAPPA = 64, 512, 0.05
MoveRow = Callable[..., None]


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000], help="of the bank")
    parser.add_argument("--repeat", type=int, default=60)
    parser.set_defaults(threads=2)
    arguments = command.parse(parser)
    command.show(measure(arguments), arguments)


def measure(arguments: Arguments) -> Iterator[Row]:
    candidates = {"numpy": blocked.move_row, **with_numba(), **with_torch()}
    for rows in arguments.rows:
        inputs = block_of_teachers(rows)
        scales = {name: learn(move_row, inputs) for name, move_row in candidates.items()}
        works = {name: partial(learn, move_row, inputs) for name, move_row in candidates.items()}
        for name, times in alternating_seconds(works, rounds=arguments.repeat).items():
            each = round(1e6 * statistics.median(times) / TEACHERS, 1)
            difference = float((scales[name] - scales["numpy"]).abs().max())
            yield {"loop": name, "rows": rows, "us_per_teacher": each, "largest_difference": difference}


def learn(move_row: MoveRow, inputs: dict[str, Any]) -> torch.Tensor:
    """The scales of the rows after one block, with `move_row` as the inner loop."""
    module: Any = blocked
    module.move_row = move_row
    return blocked.learn(**inputs, kappa=KAPPA)[1]


def block_of_teachers(rows: int) -> dict[str, torch.Tensor]:
    """What one block of teachers hands to `blocked.learn`."""
    generator = torch.Generator().manual_seed(0)
    bank, z = (normalize(torch.randn(n, DIM, generator=generator), dim=-1) for n in (rows, TEACHERS))
    cosine = z @ bank.T
    rate = 0.1 / torch.arange(1, TEACHERS + 1).sqrt() / KAPPA
    return {"cosine": cosine, "gram": z @ z.T, "target": torch.softmax(cosine / 0.01, dim=1), "rate": rate}


def with_numba() -> dict[str, MoveRow]:
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


def with_torch() -> dict[str, MoveRow]:
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
