"""Where the time of the scan on a GPU goes: by kind of kernel, and by stage.

python benchmarks/gpu_profile.py
python benchmarks/gpu_profile.py --json           # one JSON object per line
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gpu import MODES, Parts, gpu_parser, observed, run_parts, setting
from unseen import scan
from unseen.gate import decaying_steps, routes
from unseen.odds import logit
from unseen.scan.cuda import scan as cuda
from unseen.scan.cuda.plan import make_plan
from unseen_bench.run.command import Arguments
from unseen_bench.run.jsonl import Row
from unseen_bench.run.timing import median_seconds


def main() -> None:
    run_parts(gpu_parser(__doc__, PARTS), PARTS)


def kernels(_: Arguments) -> Iterator[Row]:
    """Yield which kinds of kernels the time of one stream, and of 40 in one call, is spent in."""
    online, pool, orders = setting()
    z, every = pool[orders[0][0]], [order for seeds in orders for order in seeds]
    for mode in MODES[:2]:
        with scan.using(f"cuda-{mode}"):
            yield profiled(f"one stream, {mode}", lambda: observed(online, z))
    yield profiled("40 streams in one call", lambda: online.observe_many([online.start()] * len(every), pool, every))


def profiled(name: str, work: Callable[[], object]) -> Row:
    """Yield which kinds of kernels took how long, how often they were launched, and how long the GPU was busy."""
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
    return {"case": f"profile of {name}", "busy s": busy / 1e6, **times, **calls}


def kind(name: str) -> str:
    ours = {"learn<float, 1>": "learn known", "learn<float, 2>": "learn unknown", "rewrite": "rewrite", "top<": "top"}
    ours["unseen::split"] = "split"
    products = ("gemm", "cutlass", "splitK", "nvjet")
    return next((group for part, group in ours.items() if part in name), None) or (
        "products" if any(part in name for part in products) else "rest"
    )


def stages(_: Arguments) -> Iterator[Row]:
    """Time the stages of one stream whole_scan: the gate, each bank's scan, and its chain without the reads."""
    online, pool, orders = setting()
    z = pool[orders[0][0]]
    whole = median_seconds(lambda: observed(online, z))
    trust = online.sources_and_trust(z)[1]
    yield {"case": "stage gate", "s": median_seconds(lambda: online.sources_and_trust(z)), "whole s": whole}
    none = torch.zeros((), dtype=torch.int64, device=z.device)
    sides = zip(("known", "unknown"), online._anchors, routes(trust, logit(online.beta)), strict=True)
    for name, anchors, taught in sides:
        step = decaying_steps(taught, none, rho=online.rho, dtype=z.dtype)[0]
        work = partial(cuda.scan, anchors.rows, anchors, z, step, kappa=online.kappa, tau=online.tau)
        whole_scan = median_seconds(work)
        with swapped(cuda, "read_blocks", lambda chunk, *_, **__: [chunk[..., 0]] * 3):
            chain = median_seconds(work)
        plan = make_plan(step[None], online.kappa)
        sizes = {"blocks": plan.blocks, "rows": plan.rows, "places": plan.teachers}
        row = {
            "scan s": whole_scan,
            "chain s": chain,
            "plan s": median_seconds(partial(make_plan, step[None], online.kappa)),
        }
        yield {"case": f"stage {name}", **row, **sizes, "µs per block": 1e6 * chain / plan.blocks}


@contextmanager
def swapped(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


PARTS: Parts = {"kernels": kernels, "stages": stages}

if __name__ == "__main__":
    main()
