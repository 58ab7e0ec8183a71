"""Rows of speed.py on what users run: the recommended detector in a session, one sample at a time and in batches."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.detectors import PooledEvidence
from unseen.odds import logits
from unseen_bench.run import markdown_table
from unseen_bench.run.jsonl import Row
from unseen_bench.run.synthetic import label_space, stream
from unseen_bench.run.timing import alternating_seconds

SIZES = ((10, 2_000), (200, 742), (1_000, 10_000))
BATCH, SMALL, SINGLES, ROUNDS = 512, 8, 256, 3
MILLION, STEP = 1_000_000, 10_000
HEADS = ("what", "names + negatives", "µs per sample", "times the floor", "floor: MFLOP and MB per sample")


def user_rows(samples: int, dim: int, *, clock: Callable[[], float]) -> Iterator[Row]:
    """Yield times in alternation with those of their floors, so that other work on the machine slows both."""
    for known, negatives in SIZES:
        labels = label_space(known, negatives, dim)
        detector, z = PooledEvidence(labels), stream(labels, samples)
        old = Session(detector)
        old.observe(z[: samples // 2])
        singles = z[-SINGLES:].split(1)
        works = {
            "Session, one by one": (lambda s=old, rows=singles: [s.observe(row) for row in rows], SINGLES),
            f"Session, blocks of {SMALL}": (lambda s=old, rows=z[-SINGLES:]: in_batches(s, rows, SMALL), SINGLES),
            "floor, one by one": (products_of_one(labels, singles), SINGLES),
            f"Session, batches of {BATCH}": (lambda d=detector, z=z: in_batches(Session(d), z), samples),
            f"pooled, batches of {BATCH}": (lambda d=detector, z=z: detected_in_batches(d, z), samples),
            "pooled, one call": (lambda d=detector, z=z: d.observe(d.start(), z), samples),
            "floor, batches": (products_of_batches(labels, z), samples),
        }
        seconds = alternating_seconds({case: work for case, (work, _) in works.items()}, rounds=1 + ROUNDS, clock=clock)
        each = {case: sorted(seconds[case][1:])[ROUNDS // 2] / count for case, (_, count) in works.items()}
        for case in works:
            floor = "floor, one by one" if "one by one" in case else "floor, batches"
            yield {
                "case": case,
                "known": known,
                "negatives": negatives,
                "seconds_per_sample": each[case],
                "ratio_to_floor": each[case] / each[floor],
                **least(labels, single="one by one" in case),
            }


def million_rows(dim: int) -> Iterator[Row]:
    """Run 10^6 samples through the recommended detector, and the same in float64: time, memory, drift of the last."""
    labels, drift = label_space(200, 742, dim), 0.0
    detectors = {kind: PooledEvidence(labels.to(dtype=kind)) for kind in (torch.float32, torch.float64)}
    states, seconds = {kind: one.start() for kind, one in detectors.items()}, dict.fromkeys(detectors, 0.0)
    before = peak_memory()
    for part in range(MILLION // STEP):
        z, scores = stream(labels, STEP, seed=part), []
        for kind, detector in detectors.items():
            began = time.process_time()
            output, states[kind] = detector.observe(states[kind], z.to(kind))
            seconds[kind] += time.process_time() - began
            scores.append(output.score)
        drift = float((scores[0] - scores[1]).abs().max())
    for kind, total in seconds.items():
        yield {"stream": f"{MILLION:,} samples, {kind}", "processor seconds": total}
    gained = (peak_memory() - before) / 2**20
    yield {"stream": "float32 against float64", "largest drift of the last scores": drift, "MiB for both": gained}


def peak_memory() -> int:
    """The largest resident memory of this process, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def least(labels: LabelSpace, *, single: bool) -> Row:
    """The operations and the bytes that one sample cannot do without."""
    names, dim = len(labels.names) + len(labels.negatives), labels.dim
    read = 4 * dim * names if single else 4 * dim  # a batch reads the text once for all its samples
    return {"floor_mflop": 2e-6 * dim * (names + 2 * dim), "floor_mb": 1e-6 * read}


def products_of_batches(labels: LabelSpace, z: Tensor) -> Callable[[], None]:
    """The matrix products that batches cannot avoid: with the text, and outer products for two sides."""
    anchors = torch.cat([labels.id_anchors, labels.ood_anchors])

    def multiply() -> None:
        for part in z.split(BATCH):
            part @ anchors.T
            torch.cat([part, part], dim=1).T @ part

    return multiply


def products_of_one(labels: LabelSpace, rows: tuple[Tensor, ...]) -> Callable[[], None]:
    """The product of each sample with the text: the outer products wait for an update."""
    anchors = torch.cat([labels.id_anchors, labels.ood_anchors])

    def multiply() -> None:
        for row in rows:
            logits(row, anchors, tau=1.0)

    return multiply


def in_batches(session: Session, z: Tensor, size: int = BATCH) -> None:
    for part in z.split(size):
        session.observe(part)


def detected_in_batches(detector: PooledEvidence, z: Tensor) -> None:
    """Observe what a session observes, in the same division: what it takes longer is thresholds and kept images."""
    state = detector.start()
    for part in z.split(BATCH):
        _, state = detector.observe(state, part)


def user_table(rows: list[Row]) -> Iterator[str]:
    """The rows as a table."""
    return markdown_table(HEADS, map(cells, rows))


def cells(row: Row) -> tuple[str, ...]:
    size = f"{row['known']:,} + {row['negatives']:,}"
    each, ratio = f"{1e6 * row['seconds_per_sample']:,.0f}", f"{row['ratio_to_floor']:.1f}"
    return row["case"], size, each, ratio, f"{row['floor_mflop']:.1f}, {row['floor_mb']:.3f}"
