"""Which part of the state must be fresh: the recommended detector judging by a state that is up to 1,024 samples old.

    python benchmarks/merge_parts.py FOLDER --orders id_first ood_first --rows rows.jsonl

Every sample teaches, as always; but the state that samples are judged by is renewed only every 1,024 samples, but for
the parts in the first column, which are as fresh as those of one observer. Percentage points of AUROC, one seed.
Observers that merge every 1,024 samples judge by such a state.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from merge import CELLS, ORDERS, loaded
from unseen.detectors import DetectorOutput, PooledEvidence
from unseen.detectors.pooled.state import PooledState
from unseen_bench.metrics import auroc
from unseen_bench.run import Case, Row, command, grouped, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.trial import Trial

FIRST = 256  # samples that one observer learns alone
NAMES, MEANS, FITTED = "sums of names", "means of sides", ("direction", "likelihood", "popularity")
PARTS = (NAMES, MEANS, *FITTED)
CHOICES = ((), *((part,) for part in PARTS), (NAMES, MEANS), (MEANS, *FITTED), PARTS)


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=1)
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=["id_first", "ood_first"])
    parser.add_argument("--every", type=int, default=1024)
    arguments = command.parse(parser)
    command.run_and_print(cases(arguments), arguments, table)


def cases(arguments: Arguments) -> Iterator[Case]:
    for suite, ood in CELLS:
        for order in arguments.orders:
            for fresh in CHOICES:
                key = {"suite": suite, "set": ood, "order": order, "every": arguments.every, "fresh": list(fresh)}
                yield Case(key, functools.partial(measure, arguments.folder, **key))


def measure(folder: Path, *, suite: str, set: str, order: str, every: int, fresh: list[str]) -> Row:
    known = loaded(suite, folder)
    trial, detector = known.against(set).ordered(order, 0), PooledEvidence(known.labels)
    margins = [output.margin for output in outputs(detector, trial.z, every, frozenset(fresh))]
    sequential, _ = detector.observe(detector.start(), trial.z)
    return {"change": 100 * (ranked(trial, torch.cat(margins)) - ranked(trial, sequential.margin))}


def ranked(trial: Trial, margin: Float[Tensor, " T"]) -> float:
    return auroc(margin[trial.is_id], margin[~trial.is_id])


def outputs(
    detector: PooledEvidence, z: Float[Tensor, "T d"], every: int, fresh: frozenset[str]
) -> Iterator[DetectorOutput]:
    """Yield readings by a state of which only some parts are fresh."""
    output, state = detector.observe(detector.start(), z[:FIRST])
    yield output
    old, rest, renewed = state, z[FIRST:], FIRST
    while len(rest):
        part = rest[: min(state.until_update, renewed + every - int(state.seen))]
        output, taught = detector.observe_part(mixed(old, state, fresh), part)
        yield output
        state, rest = detector.merge(state, [taught]), rest[len(part) :]
        if int(state.seen) - renewed >= every:
            old, renewed = state, int(state.seen)


def mixed(old: PooledState, new: PooledState, fresh: frozenset[str]) -> PooledState:
    """The old state with some parts of the new one."""
    sums, fitted = old.sums, old.fitted
    if NAMES in fresh:
        sums = sums._replace(known=new.sums.known, negative=new.sums.negative)
    if MEANS in fresh:
        fitted = fitted._replace(known=new.fitted.known, negative=new.fitted.negative)
    return old._replace(
        sums=sums, fitted=fitted._replace(**{name: getattr(new.fitted, name) for name in fresh & set(FITTED)})
    )


def table(rows: list[Row]) -> Iterator[str]:
    streams = list(grouped(rows, "suite", "set", "order"))
    for row in rows:
        row["parts"] = ", ".join(row["fresh"]) or "none"
    lines = (
        (
            parts,
            *(
                f"{row['change']:+.2f}"
                for row in sorted(group, key=lambda row: streams.index((row["suite"], row["set"], row["order"])))
            ),
        )
        for (parts,), group in grouped(rows, "parts").items()
    )
    return markdown_table(("fresh", *map(", ".join, streams)), lines)


if __name__ == "__main__":
    main()
