"""How fast the scan is: naive loop, one by one, blocked and the floor of its matrix products, as ratios in one run.

    python benchmarks/speed.py                  # a table
    python benchmarks/speed.py --json           # one JSON object per line
    python benchmarks/speed.py --device cuda    # the same questions to a GPU, and its own: see benchmarks/gpu.py

Every time is the median of a few repetitions; `naive` runs a slice of the stream and is scaled up per sample. Nothing
is printed while the scan's tests are red: a fast wrong number is no speed-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen import LabelSpace
from unseen.detectors import AdaNeg, Online, PooledEvidence
from unseen.detectors.base import BLOCK
from unseen.gate import decaying_steps
from unseen.odds import logit
from unseen.scan import blocked, naive
from unseen.text import TextLogits, neglabel, text_logits

REPO = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One measurement; ratios are of seconds per sample, so cases of different length compare."""

    case: str
    samples: int
    seconds: float
    ratio_to_naive: float | None = None
    ratio_to_floor: float | None = None
    known: int = 0
    negatives: int = 0
    note: str = ""


def main() -> None:
    arguments, others = parsed()
    if arguments.device != "cpu":
        import gpu  # which borrows from this file

        gpu.main([*others, *["--json"] * arguments.json])
        return
    torch.set_num_threads(arguments.threads)
    if subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/scan/test_blocked.py"], cwd=REPO, capture_output=True
    ).returncode:
        sys.exit("tests/scan/test_blocked.py is red: run it, then measure again")
    rows = []
    for row in measured(arguments):
        rows.append(row)
        if arguments.json:
            print(json.dumps(row.__dict__), flush=True)
    if not arguments.json:
        show(rows)


def parsed() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", type=int, default=1_000)
    parser.add_argument("--negatives", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--samples", type=int, default=60_000, help="five in six from known classes, as in ImageNet")
    parser.add_argument("--slow", type=int, default=200, help="samples for the one-at-a-time cases")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--million", action="store_true", help="also a stream of 10^6 samples (minutes)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: options are those of gpu.py")
    parser.add_argument("--json", action="store_true")
    arguments, others = parser.parse_known_args()
    if others and arguments.device == "cpu":
        parser.error(f"expected no other arguments on a CPU, got {' '.join(others)}")
    return arguments, others


def measured(arguments: argparse.Namespace) -> Iterator[Row]:
    labels = label_space(arguments.known, arguments.negatives, arguments.dim)
    z = stream(labels, arguments.samples)
    online = Online(labels)
    size = {"known": arguments.known, "negatives": arguments.negatives}
    slow = z[:: len(z) // arguments.slow][: arguments.slow]

    naive_each = seconds(lambda: naive_loop(online, slow)) / len(slow)
    floor_each = seconds(lambda: products(online, z[:8192]), repeat=5) / len(z[:8192])

    def row(case: str, samples: int, total: float, note: str = "", **sizes: int) -> Row:
        each = total / samples
        return Row(case, samples, total, naive_each / each, each / floor_each, **{**size, **sizes}, note=note)

    yield row("naive", len(slow), naive_each * len(slow), "one sample at a time, as the equations stand")
    yield row("floor", 8192, floor_each * 8192, "the matrix products of blocked, nothing else")
    started = time.perf_counter()
    reading, _ = online.observe(online.start(), z)
    total = time.perf_counter() - started
    known, unknown = (float((sign * reading.route > 0).float().mean()) for sign in (1, -1))
    yield row("blocked", len(z), total, f"{known:.0%} taught known, {unknown:.0%} unknown")
    yield row("one by one", len(slow), seconds(lambda: one_by_one(online, slow)), "observe() per sample")
    default, part = PooledEvidence(labels), z[:8192]
    yield row("default", len(part), seconds(lambda: default.observe(default.start(), part)), "the default detector")
    adaneg = AdaNeg(labels)
    some = z[:1024]
    yield row("adaneg", len(some), seconds(lambda: adaneg.observe(adaneg.start(), some), repeat=1), "AdaNeg, causal")
    for samples in (1_000, 10_000, *([1_000_000] if arguments.million else [])):
        part = z[:samples] if samples <= len(z) else z.repeat(-(-samples // len(z)), 1)[:samples]
        yield row(
            f"blocked at {samples:,}", samples, seconds(lambda p=part: online.observe(online.start(), p), repeat=1)
        )
    for negatives in (arguments.negatives // 4, arguments.negatives // 2):
        smaller = Online(labels.with_negatives(negatives))
        part = z[:8192]
        total = seconds(lambda d=smaller, p=part: d.observe(d.start(), p))
        yield row(f"blocked, {negatives:,} negatives", len(part), total, negatives=negatives)


def label_space(known: int, negatives: int, dim: int) -> LabelSpace:
    anchors = normalize(torch.randn(known + negatives, dim, generator=torch.Generator().manual_seed(0)), dim=-1)
    names = [f"name {i}" for i in range(known + negatives)]
    return LabelSpace(tuple(names[:known]), tuple(names[known:]), anchors[:known], anchors[known:])


def stream(labels: LabelSpace, samples: int) -> Tensor:
    """Return five in six samples around known anchors and one around negatives, some clear and some not."""
    generator = torch.Generator().manual_seed(1)
    known = torch.rand(samples, generator=generator) < 5 / 6
    anchors = torch.where(
        known.unsqueeze(1),
        labels.id_anchors[torch.randint(len(labels.names), (samples,), generator=generator)],
        labels.ood_anchors[torch.randint(len(labels.negatives), (samples,), generator=generator)],
    )
    return around(anchors, generator)


def around(anchors: Tensor, generator: torch.Generator) -> Tensor:
    """Return one sample near each anchor, some clearly so and some not."""
    options: dict[str, Any] = {"generator": generator, "device": anchors.device}
    noise = normalize(torch.randn(anchors.shape, **options), dim=-1)
    strength = 0.1 + 0.25 * torch.rand(len(anchors), 1, **options)
    return normalize(strength * anchors + noise, dim=-1)


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


def one_by_one(online: Online, z: Tensor) -> None:
    state = online.start()
    for sample in z.split(1):
        _, state = online.observe(state, sample)


def products(online: Online, z: Tensor) -> None:
    """Do the matrix products that blocked cannot avoid, in its shapes: gate, reads, corrections, rewrites."""
    trust = torch.cat([neglabel(text_logits(online.labels, block, tau=online.tau)) for block in z.split(BLOCK)])
    bound = logit(online.beta)
    routes = ((online.labels.id_anchors, trust >= bound), (online.labels.ood_anchors, trust <= -bound))
    plan = [(anchors, block, z[block][taught[block]]) for anchors, taught in routes for block in blocks_of(taught)]
    shapes = [
        (anchors, z[block], teachers, z.new_zeros(len(teachers), len(anchors))) for anchors, block, teachers in plan
    ]
    timer.start()
    for anchors, samples, teachers, coef in shapes:
        samples @ anchors.T
        reads = samples @ anchors.T
        if len(teachers):
            reads.addmm_(samples @ teachers.T, coef)
            torch.addmm(anchors, coef.T, teachers)
    timer.stop()


def blocks_of(taught: Tensor) -> list[slice]:
    return [
        slice(start + part.start, start + part.stop)
        for start in range(0, len(taught), BLOCK)
        for part in blocked.blocks(taught[start : start + BLOCK].float() * 1e-3, 0.05)
    ]


class Timer:
    """Let a case exclude its preparation from its time."""

    elapsed: float | None = None

    def start(self) -> None:
        self.begun = time.perf_counter()

    def stop(self) -> None:
        self.elapsed = time.perf_counter() - self.begun


timer = Timer()


def seconds(work: Callable[[], object], *, repeat: int = 3) -> float:
    """Return the median time of `work`, after one run to warm up, or of the part it timed itself."""
    times = []
    for _ in range(repeat + 1):
        timer.elapsed = None
        started = time.perf_counter()
        work()
        times.append(timer.elapsed or time.perf_counter() - started)
    return statistics.median(times[1:])


def show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("case", "samples", "µs per sample", "times naive", "of floor", "note")
    for row in rows:
        each = f"{1e6 * row.seconds / row.samples:,.1f}"
        ratios = (f"{r:.2f}" if r is not None else "" for r in (row.ratio_to_naive, row.ratio_to_floor))
        table.add_row(row.case, f"{row.samples:,}", each, *ratios, row.note)
    Console().print(table)


if __name__ == "__main__":
    main()
