"""How fast what users run is, and the scan: one by one, in batches, naive loop, floors; as ratios in one run.

    python benchmarks/speed.py                  # two tables; --users prints the first only
    python benchmarks/speed.py --json           # one JSON object per line
    python benchmarks/gpu.py                    # the scan on a GPU

A floor is the matrix products that no implementation avoids. Times are medians of rounds in alternation, so that other
work on the machine slows all cases; `naive` runs a part of the stream. Nothing is measured while tests of it fail.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.detectors import Detector, Online, PooledEvidence
from unseen.detectors.base import BLOCK
from unseen.odds import TextLogits, logit, neglabel, text_logits
from unseen.scan import blocked, naive
from unseen.scan.gate import decaying_steps
from unseen_bench.run import Row, command, markdown_table
from unseen_bench.run.command import Arguments, alternating_seconds
from unseen_bench.run.synthetic import label_space, stream

REPOSITORY = Path(__file__).parents[1]
SIZES = ((10, 2_000), (200, 742), (1_000, 10_000))
BATCH, SINGLES, ROUNDS = 512, 256, 3
HEADS = ("what", "names + negatives", "µs per sample", "times the floor")
Works = Mapping[str, tuple[Callable[[], object], int]]  # what is done for so many samples


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--samples", type=int, default=8_192)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--users", action="store_true", help="only what users run")
    parser.set_defaults(threads=torch.get_num_threads())
    arguments = command.parse(parser)
    command.require_passing_tests(REPOSITORY, "tests/scan", "tests/detectors/pooled")
    command.show(measure(arguments), arguments, table)


def measure(arguments: Arguments) -> Iterator[Row]:
    for known, negatives in SIZES:
        labels = label_space(known, negatives, arguments.dim)
        z = stream(labels, arguments.samples)
        sizes = {"known": known, "negatives": negatives}
        yield from timed(session_works(labels, z), sizes)
    if not arguments.users:
        yield from timed(scan_works(labels, z), sizes)


def timed(works: Works, sizes: Row) -> Iterator[Row]:
    """Every case beside the floor that comes before it."""
    seconds = alternating_seconds({case: work for case, (work, _) in works.items()}, rounds=1 + ROUNDS)
    floor = 0.0
    for case, (_, count) in works.items():
        each = statistics.median(seconds[case][1:]) / count
        floor = each if case.startswith("floor") else floor
        yield {"case": case, **sizes, "seconds_per_sample": each, "ratio_to_floor": each / floor}


def session_works(labels: LabelSpace, z: Tensor) -> Works:
    detector, singles = PooledEvidence(labels), z[-SINGLES:].split(1)
    old = Session(detector)
    old.observe(z[: len(z) // 2])
    return {
        "floor, one by one": (products_of_batches(labels, singles), SINGLES),
        "Session, one by one": (lambda: [old.observe(row) for row in singles], SINGLES),
        "floor, batches": (products_of_batches(labels, z.split(BATCH)), len(z)),
        f"Session, batches of {BATCH}": (lambda: in_batches(Session(detector), z), len(z)),
        "pooled, one call": (lambda: detector.observe(detector.start(), z), len(z)),
    }


def products_of_batches(labels: LabelSpace, parts: tuple[Tensor, ...]) -> Callable[[], None]:
    """The products that batches cannot avoid: with the text, and of more than one row outer products for two sides."""
    anchors = torch.cat([labels.id_anchors, labels.ood_anchors])

    def multiply() -> None:
        for part in parts:
            part @ anchors.T
            if len(part) > 1:
                torch.cat([part, part], dim=1).T @ part

    return multiply


def in_batches(session: Session, z: Tensor) -> None:
    for part in z.split(BATCH):
        session.observe(part)


def scan_works(labels: LabelSpace, z: Tensor) -> Works:
    online, slow = Online(labels), z[:: len(z) // SINGLES][:SINGLES]
    return {
        "floor: the matrix products of blocked alone": (products_of_scan(online, z), len(z)),
        "naive: the equations, one sample at a time": (lambda: naive_loop(online, slow), len(slow)),
        "observe, one sample at a time": (lambda: observe_singly(online, slow), len(slow)),
        "blocked": (lambda: online.observe(online.start(), z), len(z)),
    }


def naive_loop(online: Online, z: Tensor) -> None:
    """Do Algorithm 1 one sample at a time: gate, both banks, energies."""
    labels, state, bound = online.labels, online.start(), logit(online.beta)
    settings = {"kappa": online.kappa, "tau": online.tau}
    for sample in z.split(1):
        text = TextLogits(sample / online.tau @ labels.id_anchors.T, sample / online.tau @ labels.ood_anchors.T)
        trust = neglabel(text)
        id_step, id_seen = decaying_steps(trust >= bound, state.id_seen, rho=online.rho, dtype=z.dtype)
        ood_step, ood_seen = decaying_steps(trust <= -bound, state.ood_seen, rho=online.rho, dtype=z.dtype)
        known = naive.scan(state.id_bank, text.known, sample, id_step, **settings)
        unknown = naive.scan(state.ood_bank, text.negative, sample, ood_step, **settings)
        state = type(state)(known.bank, unknown.bank, id_seen, ood_seen)


def observe_singly(detector: Detector, z: Tensor) -> None:
    state = detector.start()
    for sample in z.split(1):
        _, state = detector.observe(state, sample)


def products_of_scan(online: Online, z: Tensor) -> Callable[[], None]:
    """The matrix products that blocked cannot avoid, in its shapes: gate, reads, corrections, rewrites."""
    trust = torch.cat([neglabel(text_logits(online.labels, block, tau=online.tau)) for block in z.split(BLOCK)])
    bound = logit(online.beta)
    routes = ((online.labels.id_anchors, trust >= bound), (online.labels.ood_anchors, trust <= -bound))
    plan = [(anchors, z[block], z[block][taught[block]]) for anchors, taught in routes for block in blocks_of(taught)]
    shapes = [(*part, z.new_zeros(len(part[2]), len(part[0]))) for part in plan]

    def multiply() -> None:
        for anchors, samples, teachers, coef in shapes:
            samples @ anchors.T
            reads = samples @ anchors.T
            if len(teachers):
                reads.addmm_(samples @ teachers.T, coef)
                torch.addmm(anchors, coef.T, teachers)

    return multiply


def blocks_of(taught: Tensor) -> list[slice]:
    return [
        slice(start + part.start, start + part.stop)
        for start in range(0, len(taught), BLOCK)
        for part in blocked.blocks(taught[start : start + BLOCK].float() * 1e-3, 0.05)
    ]


def table(rows: list[Row]) -> Iterator[str]:
    return markdown_table(HEADS, map(cells, rows))


def cells(row: Row) -> tuple[str, ...]:
    size = f"{row['known']:,} + {row['negatives']:,}"
    return row["case"], size, f"{1e6 * row['seconds_per_sample']:,.1f}", f"{row['ratio_to_floor']:.1f}"


if __name__ == "__main__":
    main()
