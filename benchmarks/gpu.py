"""How fast the scan is on a GPU: whole streams, many at once, one by one; and the encoder before it.

    python benchmarks/gpu.py                          # every part
    python benchmarks/gpu.py --only streams profile   # some of them
    python benchmarks/gpu.py --json                   # one JSON object per line

Times are medians after a warm-up, in one run, against ceilings measured in that run. Nothing is printed while the GPU
tests are red: a fast wrong number is no speed-up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from speed import label_space, naive_loop, stream
from unseen.detectors import Online
from unseen.gate import UNSURE, neglabel, read_text
from unseen.metrics import auroc
from unseen.odds import logit
from unseen.scan import cuda

REPO = Path(__file__).parents[1]
KNOWN, NEGATIVES, DIM = 1_000, 10_000, 512
LENGTHS = (60_000, 60_000, 60_000, 55_640)  # 50,000 known samples and one of four unknown sets
SEEDS = 10
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--untested", action="store_true", help="do not run the tests first")
    parser.add_argument("--autotune", action="store_true", help="let torch.compile try more kernels (minutes)")
    parser.add_argument("--features", type=Path, default=REPO.parent / "shared" / "clip-b16")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files")
    arguments = parser.parse_args()
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/test_scan_cuda.py"]
    if not arguments.untested and subprocess.run(tests, cwd=REPO, capture_output=True).returncode:
        sys.exit("tests/test_scan_cuda.py is red: run it with -m gpu, then measure again")
    for part in arguments.only:
        for row in PARTS[part](arguments):
            print(json.dumps(row) if arguments.json else shown(row), flush=True)


def shown(row: Row) -> str:
    texts = (f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items() if k != "case")
    return f"{row['case']:<30}" + " · ".join(texts)


def seconds(work: Callable[[], object], *, repeat: int = 5, warm: int = 1) -> float:
    """Return the median time of `work` from call to the end of its work on the GPU."""
    times = []
    for _ in range(warm + repeat):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[warm:])


def on_device(work: Callable[[], object], *, inner: int = 20, repeat: int = 7) -> float:
    """Return the median time of `work` between two events on the GPU, per call of `inner` in a row."""
    times = []
    for _ in range(repeat + 1):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / inner)
    return statistics.median(times[1:])


# Algorithm 1 over whole streams


def trusted(online: Online, z: Tensor, *, size: int = 16_384) -> Tensor:
    """Return the gate's log-odds of samples [M, d]; those near a bound in float64, as gate.settled does."""
    sides = (online.labels.id_anchors, online.labels.ood_anchors)
    parts = []
    for chunk in z.split(size):
        known, negative = (cuda.top(chunk @ anchors.T, tau=online.tau).energy for anchors in sides)
        parts.append(known - negative)
    trust = torch.cat(parts).double()
    unsure = ((trust.abs() - logit(online.beta)).abs() < UNSURE).nonzero().squeeze(1)
    if len(unsure):
        trust[unsure] = neglabel(read_text(online.labels, z[unsure].double(), tau=online.tau))
    return trust


def decaying(taught: Tensor, rho: float) -> Tensor:
    return torch.where(taught, rho / taught.cumsum(1).clamp(min=1).double().sqrt(), 0.0).float()


def observed(online: Online, z: Tensor, *, lengths: Tensor | None = None, fast: bool = False) -> tuple[Tensor, ...]:
    """Return score, label and route of S fresh streams [S, T, d], each learnt from in order."""
    trust = trusted(online, z.flatten(0, 1)).view(z.shape[:2])
    if lengths is not None:
        trust.masked_fill_(torch.arange(z.shape[1], device=z.device) >= lengths.unsqueeze(1), 0)
    bound, labels = logit(online.beta), online.labels
    known, unknown = trust >= bound, trust <= -bound
    settings = {"kappa": online.kappa, "tau": online.tau, "fast": fast}
    here, beside = torch.cuda.current_stream(), SIDE[0]
    steps = decaying(known, online.rho), decaying(unknown, online.rho)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        anchors = labels.ood_anchors
        unknown_side = cuda.scan_many(anchors, cuda.Anchors(anchors, online.tau), z, steps[1], **settings)
    anchors = labels.id_anchors
    known_side = cuda.scan_many(anchors, cuda.Anchors(anchors, online.tau), z, steps[0], **settings)
    here.wait_stream(beside)
    for x in (*unknown_side.read, unknown_side.bank):
        x.record_stream(here)
    route = known.to(torch.int8) - unknown.to(torch.int8)
    return known_side.read.energy - unknown_side.read.energy, known_side.read.label, route


SIDE: list[torch.cuda.Stream] = []


def setting() -> tuple[Online, list[Tensor]]:
    """Return the detector and the four streams, on the GPU."""
    SIDE[:] = [torch.cuda.Stream()]
    labels = label_space(KNOWN, NEGATIVES, DIM)
    z = stream(labels, max(LENGTHS)).cuda()
    generator = torch.Generator("cuda").manual_seed(5)
    orders = [torch.randperm(len(z), generator=generator, device="cuda") for _ in LENGTHS]
    return Online(labels.to(device="cuda")), [z[order[:n]] for order, n in zip(orders, LENGTHS, strict=True)]


def ceilings(_: argparse.Namespace) -> Iterator[Row]:
    yield {"case": "machine", "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    copied = on_device(lambda: target.copy_(source), inner=5)
    rates = {"copy TB/s": 2 * source.nbytes / copied / 1e12}
    for name, kind, tf32 in (
        ("float32", torch.float32, False),
        ("tf32", torch.float32, True),
        ("bf16", torch.bfloat16, False),
    ):
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=kind) for _ in range(2))
        with cuda.products("high" if tf32 else "highest"):
            rates[f"{name} TFLOP/s"] = 2 * 8192**3 / on_device(lambda a=a, b=b: a @ b, inner=5) / 1e12
    MEASURED.update(rates)
    yield {"case": "ceilings", **rates}


MEASURED: dict[str, float] = {}


def floor(known: int, unknown: int, samples: int) -> dict[str, float]:
    """Return the least work of streams with so many teachers, and the time it takes at the measured ceilings."""
    if not MEASURED:
        list(ceilings(argparse.Namespace()))
    rows = KNOWN + NEGATIVES
    taught = known * KNOWN + unknown * NEGATIVES  # pairs of teacher and row
    # gate, reads; then for each teacher its targets, its cosines and its share of the rewrite
    flops = 2.0 * DIM * (2 * samples * rows + 3 * taught)
    moved = 4.0 * (samples * DIM * 2 + 2 * rows * DIM)
    times = {"products s": flops / MEASURED["float32 TFLOP/s"] / 1e12, "bytes s": moved / MEASURED["copy TB/s"] / 1e12}
    return {"TFLOP": flops / 1e12, "GB": moved / 1e9, **times}


def streams(_: argparse.Namespace) -> Iterator[Row]:
    online, parts = setting()
    slow = parts[0][:300]
    naive_loop(online, slow[:50])
    torch.cuda.synchronize()
    started = time.perf_counter()
    naive_loop(online, slow)
    torch.cuda.synchronize()
    naive_each = (time.perf_counter() - started) / len(slow)
    yield {"case": "naive", "µs per sample": 1e6 * naive_each}
    for fast in (False, True):
        total, known, unknown = 0.0, 0, 0
        for part in parts:
            route = observed(online, part[None], fast=fast)[2]
            known, unknown = known + int((route > 0).sum()), unknown + int((route < 0).sum())
            took = seconds(lambda p=part, f=fast: observed(online, p[None], fast=f))
            total += took
            yield {"case": f"stream{' fast' * fast}", "samples": len(part), "s": took}
        samples = sum(LENGTHS)
        least = floor(known, unknown, samples)
        if not fast:
            yield {"case": "four streams in one call", "s": four_at_once(online, parts)}
        yield {
            "case": f"four streams{' fast' * fast}",
            "s": total,
            "µs per sample": 1e6 * total / samples,
            "times naive": naive_each * samples / total,
            "taught known": known / samples,
            "taught unknown": unknown / samples,
            **least,
            "of floor": total / max(least["products s"], least["bytes s"]),
        }


def four_at_once(online: Online, parts: list[Tensor]) -> float:
    lengths = torch.tensor(LENGTHS, device="cuda")
    z = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    return seconds(lambda: observed(online, z, lengths=lengths))


def many(_: argparse.Namespace) -> Iterator[Row]:
    online, parts = setting()
    lengths = torch.tensor([n for n in LENGTHS for _ in range(SEEDS)], device="cuda")
    z = torch.zeros(len(lengths), max(LENGTHS), DIM, device="cuda")
    generator = torch.Generator("cuda").manual_seed(7)
    for i in range(len(lengths)):
        part = parts[i // SEEDS]
        z[i, : len(part)] = part[torch.randperm(len(part), generator=generator, device="cuda")]

    def one_by_one() -> None:
        for i, n in enumerate(lengths.tolist()):
            observed(online, z[i : i + 1, :n])

    route = observed(online, z, lengths=lengths)[2]
    least = floor(int((route > 0).sum()), int((route < 0).sum()), int(lengths.sum()))["products s"]
    together = seconds(lambda: observed(online, z, lengths=lengths), repeat=3)
    quick = seconds(lambda: observed(online, z, lengths=lengths, fast=True), repeat=3)
    alone = seconds(one_by_one, repeat=3)
    peak = torch.cuda.max_memory_allocated() / 1e9
    row = {"one call s": together, "one by one s": alone, "share": together / alone}
    yield {"case": "40 streams", **row, "fast s": quick, "floor s": least, "of floor": together / least, "GB": peak}


def profile(_: argparse.Namespace) -> Iterator[Row]:
    """Say where the time of one stream goes: by kind of kernel, then by stage."""
    online, parts = setting()
    z = parts[0][None]
    took = seconds(lambda: observed(online, z))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        observed(online, z)
        torch.cuda.synchronize()
    spent, calls, spans = defaultdict(float), defaultdict(int), []
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            span = event.time_range
            spent[kind(event.name)] += span.elapsed_us() / 1e6
            calls[kind(event.name)] += 1
            spans.append((span.start, span.end))
    busy = until = 0.0
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, until))
        until = max(until, stop)
    yield {"case": "profile of one stream", "s": took, "busy s": busy / 1e6, **spent}
    yield {"case": "launches", **calls}
    yield from stages(online, z, took)


def kind(name: str) -> str:
    ours = {"learn<float, 1>": "learn known", "learn<float, 2>": "learn unknown", "rewrite": "rewrite", "top<": "top"}
    products = ("gemm", "cutlass", "splitK")
    return next((group for part, group in ours.items() if part in name), None) or (
        "products" if any(part in name for part in products) else "rest"
    )


def stages(online: Online, z: Tensor, whole: float) -> Iterator[Row]:
    """Time the stages of one stream alone: the gate, each bank's scan, and its chain without the reads."""
    trust = trusted(online, z[0])[None]
    bound, settings = logit(online.beta), {"kappa": online.kappa, "tau": online.tau}
    yield {"case": "stage gate", "s": seconds(lambda: trusted(online, z[0])), "whole s": whole}
    sides = ("known", online.labels.id_anchors, trust >= bound), ("unknown", online.labels.ood_anchors, trust <= -bound)
    for name, anchors, taught in sides:
        step = decaying(taught, online.rho)
        work = partial(cuda.scan_many, anchors, cuda.Anchors(anchors, online.tau), z, step, **settings)
        alone = seconds(work)
        with swapped(cuda, "reads", lambda chunk, *_, **__: [chunk[..., 0]] * 3):
            chain = seconds(work)
        plan = cuda.planned(step, online.kappa)
        cut = {"blocks": plan.blocks, "rows": plan.rows, "places": plan.teachers}
        row = {"scan s": alone, "chain s": chain, "plan s": seconds(partial(cuda.planned, step, online.kappa))}
        yield {"case": f"stage {name}", **row, **cut, "µs per block": 1e6 * chain / plan.blocks}


@contextmanager
def swapped(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def latency(_: argparse.Namespace) -> Iterator[Row]:
    """Time one sample at a time with the state resident: on the GPU, and from host memory to a score on the host."""
    online, parts = setting()
    z = parts[0][:2000]
    labels = online.labels
    resident = cuda.Resident(labels.id_anchors, labels.ood_anchors, bound=logit(online.beta))
    pinned = z.cpu().pin_memory()
    for sample in z[:20]:
        resident.observe(sample)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        resident.launch()
    score = torch.empty((), dtype=torch.float64).pin_memory()
    walls, routes = [], []
    for sample in pinned:
        started = time.perf_counter()
        resident.z.copy_(sample, non_blocking=True)
        graph.replay()
        score.copy_(resident.score, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        walls.append(1e6 * (time.perf_counter() - started))
        routes.append(int(resident.route))
    device = []
    for sample, route in zip(z[:600], routes, strict=False):
        resident.z.copy_(sample)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        device.append((1e3 * start.elapsed_time(stop), route))
    for name, route in (("read only", 0), ("taught known", 1), ("taught unknown", -1)):
        yield {
            "case": f"one by one, {name}",
            "GPU µs": statistics.median(t for t, r in device if r == route),
            "host to host µs": statistics.median(t for t, r in zip(walls, routes, strict=True) if r == route),
        }
    ranked = sorted(walls)
    yield {"case": "one by one, all", "GPU µs": statistics.median(t for t, _ in device),
           "host to host µs": statistics.median(walls), "p99": ranked[int(0.99 * len(ranked))]}  # fmt: skip


def precision(arguments: argparse.Namespace) -> Iterator[Row]:
    """Compare float32 and tf32 reads on real features: scores, AUROC."""
    from safetensors.torch import load_file

    def features(name: str) -> Tensor:
        return normalize(load_file(arguments.features / f"{name}.safetensors")["features"].float(), dim=-1)

    names, negatives = features("text-imagenet1k"), features("text-surrogate-negatives")[:NEGATIVES]
    space = label_space(len(names), len(negatives), DIM)
    labels = type(space)(space.names, space.negatives, names, negatives).to(device="cuda")
    online = Online(labels)
    SIDE[:] = [torch.cuda.Stream()]
    known = features("images-imagenet_val5")
    for name in ("textures10", "intel_scenes", "flowers102", "mnist"):
        unknown = features(f"images-{name}")
        order = torch.randperm(len(known) + len(unknown), generator=torch.Generator().manual_seed(0))
        z, is_id = torch.cat([known, unknown])[order].cuda(), order.cuda() < len(known)
        exact, near = (observed(online, z[None], fast=fast)[0][0] for fast in (False, True))
        rates = [float(auroc(score[is_id].cpu(), score[~is_id].cpu())) for score in (exact, near)]
        yield {"case": f"tf32 reads, {name}", "AUROC float32": rates[0], "AUROC tf32": rates[1],
               "largest change of a score": float((exact - near).abs().max())}  # fmt: skip


def tower(batch: int = 512) -> tuple[torch.nn.Module, Tensor, float]:
    """Return a ViT-B/16 of CLIP's with random weights, a batch, and its floating-point operations per image."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(patch_size=16, projection_dim=512, attn_implementation="sdpa")
    model = CLIPVisionModelWithProjection(config).eval().cuda().to(torch.bfloat16)
    images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    tokens, width = 197, config.hidden_size
    layer = tokens * (4 * width**2 + 2 * width * config.intermediate_size) + 2 * tokens**2 * width
    multiplies = config.num_hidden_layers * layer + 196 * 768 * width + width * 512
    return model, images, 2.0 * multiplies


def encode(arguments: argparse.Namespace) -> Iterator[Row]:
    if not MEASURED:
        list(ceilings(argparse.Namespace()))
    model, images, flops = tower()
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs" if arguments.autotune else "default")
    with torch.inference_mode():
        for name, run in (("eager", model), ("compiled", compiled)):
            started = time.perf_counter()
            run(pixel_values=images)
            torch.cuda.synchronize()
            first = time.perf_counter() - started
            took = on_device(lambda run=run: run(pixel_values=images), inner=5)
            rate = flops * len(images) / took / 1e12
            yield {"case": f"ViT-B/16 bf16, {name}", "images/s": len(images) / took, "GFLOP per image": flops / 1e9,
                   "TFLOP/s": rate, "of ceiling": rate / MEASURED["bf16 TFLOP/s"], "first call s": first}  # fmt: skip


def jpeg(arguments: argparse.Namespace) -> Iterator[Row]:
    """Go from JPEG bytes to unit vectors, decoding on the CPU's cores or on the GPU."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2.functional import center_crop, resize

    if arguments.images is None:
        return
    model, _, _ = tower(1)
    small = [
        torch.frombuffer(bytearray(p.read_bytes()), dtype=torch.uint8) for p in sorted(arguments.images.glob("*.jpg"))
    ]
    cores = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(cores)
    mean = torch.tensor([0.481, 0.458, 0.408], device="cuda").view(-1, 1, 1)
    deviation = torch.tensor([0.269, 0.261, 0.276], device="cuda").view(-1, 1, 1)

    def squared(image: Tensor) -> Tensor:
        return center_crop(resize(image, [224], antialias=True), [224, 224])

    def on_cpu(data: list[Tensor]) -> Tensor:
        images = list(pool.map(lambda x: squared(decode_jpeg(x, mode=ImageReadMode.RGB)), data))
        return torch.stack(images).pin_memory().cuda(non_blocking=True)

    def on_gpu(data: list[Tensor]) -> Tensor:
        return torch.stack([squared(x) for x in decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")])

    def vectors(pixels: Tensor) -> Tensor:
        batch = ((pixels.float() / 255 - mean) / deviation).to(torch.bfloat16)
        return normalize(model(pixel_values=batch).image_embeds.float(), dim=-1)

    torch.set_num_threads(1)
    for size, files in (("as they are", small), ("at 500 x 375", [enlarged(x) for x in small[:64]])):
        data = (files * -(-512 // len(files)))[:512]
        for name, decode in (("CPU", on_cpu), ("GPU", on_gpu)):
            with torch.inference_mode():
                alone = seconds(lambda d=decode, x=data: d(x), repeat=3)
                both = seconds(lambda d=decode, x=data: vectors(d(x)), repeat=3)
            yield {"case": f"JPEG {size}, {name}", "images/s": len(data) / both, "decoding and resizing": alone / both,
                   "bytes per image": sum(len(x) for x in data) / len(data), "cores": cores}  # fmt: skip


def enlarged(data: Tensor) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg
    from torchvision.transforms.v2.functional import resize

    return encode_jpeg(resize(decode_jpeg(data, mode=ImageReadMode.RGB), [375, 500], antialias=True), quality=95)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "ceilings": ceilings,
    "streams": streams,
    "profile": profile,
    "many": many,
    "latency": latency,
    "precision": precision,
    "encode": encode,
    "jpeg": jpeg,
}

if __name__ == "__main__":
    main()
