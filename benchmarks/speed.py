"""How fast what users run is, and the scan: naive loop, one by one, blocked, floors; as ratios in one run.

    python benchmarks/speed.py                  # two tables; --users prints the first only
    python benchmarks/speed.py --json           # one JSON object per line
    python benchmarks/speed.py --million        # 10^6 samples once, in float32 and float64: time, memory, drift
    python benchmarks/gpu.py                    # the same questions on a GPU, and others

Every time is the median of a few repetitions; `naive` runs a part of the stream and is scaled up per sample. Nothing
is measured while the tests of the scan fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from speed_users import million_rows, user_rows, user_table
from unseen.detectors import Detector, Online
from unseen.detectors.base import BLOCK
from unseen.gate import decaying_steps
from unseen.odds import logit
from unseen.scan import blocked, naive
from unseen.text import TextLogits, neglabel, text_logits
from unseen_bench.methods.zeroshot.adaneg import AdaNeg
from unseen_bench.run import command, markdown_table
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row
from unseen_bench.run.synthetic import label_space, stream
from unseen_bench.run.timing import median_seconds

REPOSITORY = Path(__file__).parents[1]
PART = 8192  # samples where a whole stream would take too long


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--samples", type=int, default=60_000, help="five in six from known classes, as in ImageNet")
    parser.add_argument("--slow", type=int, default=200, help="samples for the one-at-a-time cases")
    parser.add_argument("--million", action="store_true", help="only a stream of 10^6 samples (ten minutes)")
    parser.add_argument("--busy", action="store_true", help="processor time of what users run, with --threads 1")
    parser.add_argument("--users", action="store_true", help="only what users run")
    parser.set_defaults(threads=torch.get_num_threads())
    arguments = command.parse(parser)
    command.require_passing_tests(REPOSITORY, "tests/scan", "tests/detectors/pooled/test_detector.py")
    command.show(measure(arguments), arguments, table)


def measure(arguments: Arguments) -> Iterator[Row]:
    if arguments.million:
        yield from million_rows(arguments.dim)
        return
    yield from user_rows(PART, arguments.dim, clock=time.process_time if arguments.busy else time.perf_counter)
    if not arguments.users:
        yield from scan_rows(arguments)


def scan_rows(arguments: Arguments) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    z, online = stream(labels, arguments.samples), Online(labels)
    part, slow = z[:PART], z[:: len(z) // arguments.slow][: arguments.slow]
    naive_each = median_seconds(lambda: naive_loop(online, slow)) / len(slow)
    floor_each = median_seconds(products(online, part), repeat=5) / len(part)

    def row(case: str, samples: int, seconds: float, **sizes: int) -> Row:
        each = seconds / samples
        ratios = {"ratio_to_naive": naive_each / each, "ratio_to_floor": each / floor_each}
        counts = {"known": arguments.known, "negatives": arguments.negatives, **sizes}
        return {"case": case, "samples": samples, "seconds": seconds, **ratios, **counts}

    yield row("naive: the equations, one sample at a time", len(slow), naive_each * len(slow))
    yield row("floor: the matrix products of blocked alone", len(part), floor_each * len(part))
    yield row("blocked", len(z), median_seconds(observing(online, z), repeat=1, warmup=0))
    yield row("observe, one sample at a time", len(slow), median_seconds(lambda: observe_singly(online, slow)))
    yield row("adaneg, causal", len(z[:1024]), median_seconds(observing(AdaNeg(labels), z[:1024]), repeat=1))
    for samples in (1_000, 10_000):
        repeated = z.repeat(-(-samples // len(z)), 1)[:samples]
        yield row(f"blocked at {samples:,}", samples, median_seconds(observing(online, repeated), repeat=1))
    for negatives in (arguments.negatives // 4, arguments.negatives // 2):
        seconds = median_seconds(observing(Online(labels.with_negatives(negatives)), part))
        yield row(f"blocked, {negatives:,} negatives", len(part), seconds, negatives=negatives)


def observing(detector: Detector, z: Tensor) -> Callable[[], object]:
    return lambda: detector.observe(detector.start(), z)


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


def observe_singly(online: Online, z: Tensor) -> None:
    state = online.start()
    for sample in z.split(1):
        _, state = online.observe(state, sample)


def products(online: Online, z: Tensor) -> Callable[[], None]:
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
    if all("stream" in row for row in rows):
        yield from map(str, rows)
        return
    users = [row for row in rows if "seconds_per_sample" in row]
    yield from user_table(users)
    if len(users) == len(rows):
        return
    yield ""
    heads = ("case", "samples", "µs per sample", "times the naive loop", "of the floor")
    yield from markdown_table(heads, (cells(row) for row in rows if row not in users))


def cells(row: Row) -> tuple[str, ...]:
    each = f"{1e6 * row['seconds'] / row['samples']:,.1f}"
    return row["case"], f"{row['samples']:,}", each, f"{row['ratio_to_naive']:.2f}", f"{row['ratio_to_floor']:.2f}"


if __name__ == "__main__":
    main()
