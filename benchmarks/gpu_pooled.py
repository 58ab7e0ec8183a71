"""Rows of gpu.py on the recommended detector: a session, streams, one by one, a million samples; other detectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.detectors import Detector, PooledEvidence
from unseen_bench.methods.zeroshot.adaneg import AdaNeg
from unseen_bench.methods.zeroshot.tanl import TANL
from unseen_bench.run.jsonl import Row
from unseen_bench.run.synthetic import label_space, near
from unseen_bench.run.timing import median_seconds

SIZES = ((10, 2_000), (1_000, 10_000))
DIM, SAMPLES, BATCH, SINGLES = 512, 60_000, 8192, 300
MILLION, LAST, STREAMS = 1_000_000, 10_000, 8
Ceilings = Callable[[], dict[str, float]]


def gpu_stream(labels: LabelSpace, samples: int) -> Tensor:
    """Samples on the GPU, five in six near known anchors."""
    generator = torch.Generator("cuda").manual_seed(3)
    chance = torch.rand(samples, generator=generator, device="cuda").unsqueeze(1)
    known, negative = (
        anchors[torch.randint(len(anchors), (samples,), generator=generator, device="cuda")]
        for anchors in (labels.id_anchors, labels.ood_anchors)
    )
    return near(torch.where(chance < 5 / 6, known, negative), generator)


def floor_seconds(known: int, negatives: int, samples: int, ceilings: dict[str, float]) -> float:
    """The time of the products that cannot be avoided: text, and outer products of both sides."""
    flops = 2.0 * DIM * samples * (known + negatives + 2 * DIM)
    return flops / ceilings["float32 TFLOP/s"] / 1e12


def pooled_rows(ceilings: Ceilings) -> Iterator[Row]:
    """Yield the times of the recommended detector, the session first."""
    for known, negatives in SIZES:
        labels = label_space(known, negatives, DIM).to(device="cuda")
        detector, z = PooledEvidence(labels), gpu_stream(labels, SAMPLES)
        floor = floor_seconds(known, negatives, SAMPLES, ceilings())
        size = {"known": known, "negatives": negatives}
        works = {
            f"Session, batches of {BATCH}": lambda d=detector, z=z: session_in_batches(Session(d), z),
            f"pooled, batches of {BATCH}": lambda d=detector, z=z: in_batches(d, z),
            "Session, one call": lambda d=detector, z=z: Session(d).observe(z),
            "pooled, one call": lambda d=detector, z=z: d.observe(d.start(), z),
        }
        seconds = {case: median_seconds(work) for case, work in works.items()}
        for case, taken in seconds.items():
            yield {"case": case, **size, "µs per sample": 1e6 * taken / SAMPLES, "of floor": taken / floor}
        batches, batches_alone, whole, whole_alone = seconds.values()
        yield {
            "case": "Session over pooled",
            **size,
            "batches": batches / batches_alone,
            "one call": whole / whole_alone,
        }
        together = many_seconds(detector, z)
        each = {"µs per sample": 1e6 * together / SAMPLES / STREAMS, "of floor": together / floor / STREAMS}
        yield {"case": f"pooled, {STREAMS} streams in one call", **size, **each}
        singly(detector, z)  # records the graph
        yield {"case": "pooled, one by one", **size, "µs per sample": singly(detector, z)}
        yield {"case": "Session, one by one", **size, "µs per sample": session_singly(Session(detector), z)}
        yield {"case": "recorded graphs", **size, **graphs(detector)}


def graphs(detector: PooledEvidence) -> Row:
    """The time of recorded graphs on the GPU: of 256 samples, of each way to solve, and of a single sample."""
    streams = detector._gpu.get(1)
    recordings = streams.updates.recordings
    names = [name for name in recordings if name.startswith(("learn 256", "solve"))]
    works = {name: recordings[name] for name in sorted(names)} | {"single": streams.single_sample.run}
    return {f"µs of {name}": graph_microseconds(work, streams.updates.start) for name, work in works.items()}


def graph_microseconds(work: Callable[[], None], start: Tensor) -> float:
    """The time of a graph on the GPU, between two events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        start.zero_()  # the graph learns the same samples again
        work()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / 20


def many_seconds(detector: PooledEvidence, z: Tensor) -> float:
    """The time of several orders of the same samples in one call."""
    orders = [torch.randperm(len(z), device=z.device) for _ in range(STREAMS)]
    return median_seconds(lambda: detector.observe_many([detector.start()] * STREAMS, z, orders))


def session_in_batches(session: Session, z: Tensor) -> None:
    for part in z.split(BATCH):
        session.observe(part)


def in_batches(detector: Detector, z: Tensor) -> None:
    """Learn a stream in the batches that the session gets."""
    state = detector.start()
    for part in z.split(BATCH):
        _, state = detector.observe(state, part)


def session_singly(session: Session, z: Tensor) -> float:
    """The time of one sample at a time in a session, after a few thousand, in microseconds."""
    session.observe(z[:4096])
    for row in z[4096:4352].split(1):  # the first update among them records graphs
        session.observe(row)
    started = time.perf_counter()
    for row in z[4352 : 4352 + SINGLES].split(1):
        session.observe(row)
    return 1e6 * (time.perf_counter() - started) / SINGLES


def singly(detector: Detector, z: Tensor) -> float:
    """The time of one sample at a time after a few thousand, in microseconds."""
    _, state = detector.observe(detector.start(), z[:4096])
    torch.cuda.synchronize()
    started = time.perf_counter()
    for row in z[4096 : 4096 + SINGLES].split(1):
        output, state = detector.observe(state, row)
        output.score.item()  # a user waits for it
    return 1e6 * (time.perf_counter() - started) / SINGLES


def other_rows() -> Iterator[Row]:
    """Yield the times of detectors that keep images."""
    labels = label_space(1_000, 10_000, DIM).to(device="cuda")
    z = gpu_stream(labels, 2048)
    for detector in (AdaNeg(labels), TANL(labels)):
        seconds = median_seconds(lambda d=detector: d.observe(d.start(), z), repeat=1)
        yield {"case": detector.name, "samples": len(z), "µs per sample": 1e6 * seconds / len(z)}


def million_rows() -> Iterator[Row]:
    """Run 10^6 samples once, and once in float64: time, memory, how far scores of the last samples lie apart."""
    plain = label_space(200, 742, DIM).to(device="cuda")
    z, scores = gpu_stream(plain, MILLION), []
    for kind in (torch.float32, torch.float64):
        detector = PooledEvidence(plain.to(dtype=kind))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        started = time.perf_counter()
        state, last = detector.start(), z[:0, 0]
        for part in z.split(BATCH):
            output, state = detector.observe(state, part.to(kind))
            last = torch.cat([last, output.score])[-LAST:]
        scores.append(last.double().cpu())
        seconds = time.perf_counter() - started
        peak = (torch.cuda.max_memory_allocated() - before) / 1e6
        yield {"case": f"10^6 samples, {kind}", "s": seconds, "MB beyond the stream": peak}
    off = (scores[0] - scores[1]).abs()
    yield {"case": "float32 against float64", "median": float(off.median()), "largest": float(off.max())}
