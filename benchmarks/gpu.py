"""How fast the scan is on a GPU: whole streams, many at once, one by one; and the encoder before it.

    python benchmarks/speed.py --device cuda                          # every part
    python benchmarks/speed.py --device cuda --only streams profile   # some of them
    python benchmarks/speed.py --device cuda --json                   # one JSON object per line

Times are medians after a warm-up, in one run, against ceilings measured in that run. Nothing is printed while the GPU
tests are red: a fast wrong number is no speed-up.
"""

from __future__ import annotations

import argparse
import itertools
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

from resident import Resident
from speed import around, label_space, naive_loop
from unseen import scan
from unseen.detectors import Online
from unseen.encoders.vit import VisionTower
from unseen.gate import decaying_steps, routes
from unseen.metrics import auroc
from unseen.odds import logit
from unseen.scan.cuda import blas
from unseen.scan.cuda import scan as cuda
from unseen.scan.cuda.plan import make_plan

REPO = Path(__file__).parents[1]
KNOWN, NEGATIVES, DIM = 1_000, 10_000, 512
IMAGES, SETS = 50_000, (10_000, 10_000, 10_000, 5_640)  # known images, and those of four unknown sets
SAMPLES = sum(IMAGES + n for n in SETS)  # of four streams, each all known images and one set
MODES = ("float32", "split", "tf32")  # how reads are multiplied
SEEDS = 10
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--untested", action="store_true", help="do not run the tests first")
    parser.add_argument("--towers", nargs="+", choices=TOWERS, default=list(TOWERS), help="ways to run the ViT")
    parser.add_argument("--batches", nargs="+", type=int, default=[512, 1024], help="images the ViT gets at once")
    parser.add_argument("--features", type=Path, default=REPO.parent / "shared" / "clip-b16")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files")
    arguments = parser.parse_args(argv)
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/scan/test_cuda.py"]
    if not arguments.untested and subprocess.run(tests, cwd=REPO, capture_output=True).returncode:
        sys.exit("tests/scan/test_cuda.py is red: run it with -m gpu, then measure again")
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


def setting() -> tuple[Online, Tensor, list[list[Tensor]]]:
    """Return the detector, all images, and for each unknown set ten orders of the known images and that set."""
    labels = label_space(KNOWN, NEGATIVES, DIM).to(device="cuda")
    generator = torch.Generator("cuda").manual_seed(5)
    pool = []
    for count, anchors in ((IMAGES, labels.id_anchors), (sum(SETS), labels.ood_anchors)):
        near = torch.randint(len(anchors), (count,), generator=generator, device="cuda")
        pool.append(around(anchors[near], generator))
    starts = list(itertools.accumulate(SETS, initial=IMAGES))[:-1]
    images = [
        torch.cat([torch.arange(IMAGES), torch.arange(i, i + n)]).cuda() for i, n in zip(starts, SETS, strict=True)
    ]
    orders = [
        [part[torch.randperm(len(part), generator=generator, device="cuda")] for _ in range(SEEDS)] for part in images
    ]
    return Online(labels), torch.cat(pool), orders


def observed(online: Online, z: Tensor) -> Tensor:
    """Return the routes of one stream that was learnt from in order."""
    return online.observe(online.start(), z)[0].route


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
        rates[f"{name} TFLOP/s"] = 2 * 8192**3 / on_device(product(a, b, tf32=tf32), inner=5) / 1e12
    MEASURED.update(rates)
    yield {"case": "ceilings", **rates}


def product(a: Tensor, b: Tensor, *, tf32: bool) -> Callable[[], Tensor]:
    if a.dtype == torch.float32:
        return lambda: blas.product(a[None], b[None], reads="tf32" if tf32 else "float32")
    return lambda: a @ b.T


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
    online, pool, orders = setting()
    parts = [pool[order[0]] for order in orders]
    slow = parts[0][:300]
    naive_loop(online, slow[:50])
    torch.cuda.synchronize()
    started = time.perf_counter()
    naive_loop(online, slow)
    torch.cuda.synchronize()
    naive_each = (time.perf_counter() - started) / len(slow)
    yield {"case": "naive", "µs per sample": 1e6 * naive_each}
    routes = torch.cat([observed(online, part) for part in parts])
    known, unknown = int((routes > 0).sum()), int((routes < 0).sum())
    least = floor(known, unknown, SAMPLES)
    for mode in MODES:
        with scan.using(f"cuda-{mode}"):
            total = sum(seconds(partial(observed, online, part), repeat=3) for part in parts)
            together = seconds(lambda: four_at_once(online, pool, orders), repeat=3)
        yield {
            "case": f"four streams, {mode}",
            "s": total,
            "in one call s": together,
            "µs per sample": 1e6 * total / SAMPLES,
            "times naive": naive_each * SAMPLES / total,
            "taught known": known / SAMPLES,
            "taught unknown": unknown / SAMPLES,
            **least,
            "of floor": total / max(least["products s"], least["bytes s"]),
        }


def four_at_once(online: Online, pool: Tensor, orders: list[list[Tensor]]) -> object:
    return online.observe_many([online.start()] * len(orders), pool, [order[0] for order in orders])


def many(_: argparse.Namespace) -> Iterator[Row]:
    """Run ten orders of four sets: in one call, which shares what the frozen text says, and one after another."""
    online, pool, orders = setting()
    every = [order for seeds in orders for order in seeds]
    start = online.start()

    def together() -> Any:
        return online.observe_many([start] * len(every), pool, every)

    def one_by_one() -> None:
        for order in every:
            online.observe(start, pool[order])

    got = torch.cat([reading.route for reading, _ in together()])
    least = floor(int((got > 0).sum()), int((got < 0).sum()), len(got))["products s"]
    for mode in MODES:
        with scan.using(f"cuda-{mode}"):
            took = seconds(together, repeat=2)
            alone = seconds(one_by_one, repeat=1, warm=0)
        row = {"one call s": took, "one by one s": alone, "share": took / alone}
        peak = torch.cuda.max_memory_allocated() / 1e9
        yield {"case": f"40 streams, {mode}", **row, "floor s": least, "of floor": took / least, "GB": peak}
    yield from spent("40 streams in one call", together)


def profile(_: argparse.Namespace) -> Iterator[Row]:
    """Say where the time of one stream goes: by kind of kernel, then by stage."""
    online, pool, orders = setting()
    z = pool[orders[0][0]]
    took = seconds(lambda: observed(online, z))
    for mode in MODES[:2]:
        with scan.using(f"cuda-{mode}"):
            yield from spent(f"one stream, {mode}", lambda: observed(online, z))
    yield from stages(online, z, took)


def spent(name: str, work: Callable[[], object]) -> Iterator[Row]:
    """Say which kinds of kernels took how long, how often they were launched, and how long the GPU was busy."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as seen:
        work()
        torch.cuda.synchronize()
    times, calls, spans = defaultdict(float), defaultdict(int), []
    for event in seen.events():
        if event.device_type == torch.profiler.DeviceType.CUDA:
            span = event.time_range
            times[kind(event.name)] += span.elapsed_us() / 1e6
            calls[f"{kind(event.name)} launches"] += 1
            spans.append((span.start, span.end))
    busy = until = 0.0
    for start, stop in sorted(spans):
        busy += max(0.0, stop - max(start, until))
        until = max(until, stop)
    yield {"case": f"profile of {name}", "busy s": busy / 1e6, **times, **calls}


def kind(name: str) -> str:
    ours = {"learn<float, 1>": "learn known", "learn<float, 2>": "learn unknown", "rewrite": "rewrite", "top<": "top"}
    ours["unseen::split"] = "split"
    products = ("gemm", "cutlass", "splitK", "nvjet")
    return next((group for part, group in ours.items() if part in name), None) or (
        "products" if any(part in name for part in products) else "rest"
    )


def stages(online: Online, z: Tensor, whole: float) -> Iterator[Row]:
    """Time the stages of one stream alone: the gate, each bank's scan, and its chain without the reads."""
    trust = online.sources_and_trust(z)[1]
    yield {"case": "stage gate", "s": seconds(lambda: online.sources_and_trust(z)), "whole s": whole}
    none = torch.zeros((), dtype=torch.int64, device=z.device)
    sides = zip(("known", "unknown"), online._anchors, routes(trust, logit(online.beta)), strict=True)
    for name, anchors, taught in sides:
        step = decaying_steps(taught, none, rho=online.rho, dtype=z.dtype)[0]
        work = partial(cuda.scan, anchors.rows, anchors, z, step, kappa=online.kappa, tau=online.tau)
        alone = seconds(work)
        with swapped(cuda, "read_blocks", lambda chunk, *_, **__: [chunk[..., 0]] * 3):
            chain = seconds(work)
        plan = make_plan(step[None], online.kappa)
        cut = {"blocks": plan.blocks, "rows": plan.rows, "places": plan.teachers}
        row = {"scan s": alone, "chain s": chain, "plan s": seconds(partial(make_plan, step[None], online.kappa))}
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
    online, pool, orders = setting()
    z = pool[orders[0][0][:2000]]
    labels = online.labels
    resident = Resident(labels.id_anchors, labels.ood_anchors, bound=logit(online.beta))
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
    """Compare reads in float32 with the others on real features: scores, AUROC."""
    from safetensors.torch import load_file

    def features(name: str) -> Tensor:
        return normalize(load_file(arguments.features / f"{name}.safetensors")["features"].float(), dim=-1)

    names, negatives = features("text-imagenet1k"), features("text-surrogate-negatives")[:NEGATIVES]
    space = label_space(len(names), len(negatives), DIM)
    labels = type(space)(space.names, space.negatives, names, negatives).to(device="cuda")
    online = Online(labels)
    known = features("images-imagenet_val5")
    for name in ("textures10", "intel_scenes", "flowers102", "mnist"):
        unknown = features(f"images-{name}")
        order = torch.randperm(len(known) + len(unknown), generator=torch.Generator().manual_seed(0))
        z, is_id = torch.cat([known, unknown])[order].cuda(), order.cuda() < len(known)
        scores = {}
        for mode in MODES:
            with scan.using(f"cuda-{mode}"):
                scores[mode] = online.observe(online.start(), z)[0].score
        rates = {f"AUROC {mode}": float(auroc(s[is_id].cpu(), s[~is_id].cpu())) for mode, s in scores.items()}
        changes = {f"change {mode}": float((scores[mode] - scores["float32"]).abs().max()) for mode in MODES[1:]}
        yield {"case": f"reads on {name}", **rates, **changes}


def tower() -> torch.nn.Module:
    """Return a ViT-B/16 of CLIP's with random weights, as transformers runs it."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(0)
    config = CLIPVisionConfig(patch_size=16, projection_dim=512, hidden_act="quick_gelu", attn_implementation="sdpa")
    return CLIPVisionModelWithProjection(config).eval().cuda().to(torch.bfloat16)


def ours(**options: Any) -> VisionTower:
    return VisionTower.build(tower().state_dict(), heads=12, dtype=torch.bfloat16, device="cuda", **options)


TOKENS, WIDTH, DEPTH = 197, 768, 12
TEXTBOOK = DEPTH * (TOKENS * 12 * WIDTH**2 + 2 * TOKENS**2 * WIDTH) + 196 * WIDTH**2 + WIDTH * 512
# nobody reads the last block's other tokens: there they are keys and values only
LEAN = TEXTBOOK - (TOKENS - 1) * (12 - 2) * WIDTH**2 - 2 * (TOKENS - 1) * TOKENS * WIDTH
NARROW = {"residual": torch.bfloat16, "patch": torch.bfloat16}
TOWERS: dict[str, tuple[int, Callable[[], Callable[[Tensor], object]]]] = {  # multiplications of an image, and the way
    "ours": (LEAN, lambda: ours().images),
    "ours-narrow-compiled": (LEAN, lambda: ours(**NARROW).compiled()),
    "ours-narrow-autotuned": (LEAN, lambda: ours(**NARROW).compiled(AUTOTUNE)),
    "transformers-compiled": (TEXTBOOK, lambda: torch.compile(tower())),
    "ours-compiled": (LEAN, lambda: ours().compiled()),
    "ours-autotuned": (LEAN, lambda: ours().compiled(AUTOTUNE)),
    "ours-bf16-patches-compiled": (LEAN, lambda: ours(patch=torch.bfloat16).compiled()),
    "transformers": (TEXTBOOK, lambda: tower()),
}
AUTOTUNE = "max-autotune-no-cudagraphs"


def encode(arguments: argparse.Namespace) -> Iterator[Row]:
    """Time the ViT in several ways; the share of the ceiling counts the multiplications done, not the textbook's."""
    if not MEASURED:
        list(ceilings(argparse.Namespace()))
    for batch, name in itertools.product(arguments.batches, arguments.towers):
        multiplies, build = TOWERS[name]
        torch._dynamo.reset()
        run = build()
        images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        with torch.inference_mode():
            started = time.perf_counter()
            run(images)
            torch.cuda.synchronize()
            first = time.perf_counter() - started
            took = on_device(lambda r=run, x=images: r(x), inner=5, repeat=5)
        rate = 2.0 * multiplies * batch / took / 1e12
        yield {"case": f"ViT-B/16 bf16, {name}, {batch}", "images/s": batch / took, "TFLOP/s": rate,
               "GFLOP per image": 2e-9 * multiplies, "of ceiling": rate / MEASURED["bf16 TFLOP/s"],
               "first call s": first}  # fmt: skip


def jpeg(arguments: argparse.Namespace) -> Iterator[Row]:
    """Go from JPEG bytes to unit vectors, decoding on the CPU's cores or on the GPU."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2.functional import center_crop, resize

    if arguments.images is None:
        return
    model = tower()
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
