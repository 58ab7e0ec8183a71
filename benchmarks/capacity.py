"""How many GPUs, cores, bytes and dollars so many images a day take: a simulation calibrated by measured stages.

    python benchmarks/stages.py --json > stages.jsonl           # minutes; calibrates, and runs for the check
    python benchmarks/capacity.py stages.jsonl

Stages of a CPU and the size of an image are read from that file, rates of a GPU from the tables of docs/performance.md.
The first table predicts the real runs on this machine that stand in the file, the second plans, the third kills a
node. A plan has as many nodes as keep the busiest resource at `--load`; then arrivals are simulated (Poisson, in
shards) with a node lost on the way. Prices are assumptions: put in your own.
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from queueing import Failure, Outcome, Simulation, Stage
from unseen.scale.pool import AHEAD
from unseen_bench.run import command, markdown_table
from unseen_bench.run.command import Arguments

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"
GPU_ROWS = ("our tower, eager", "GPU, 8 processes read, compiled, to disk")
BLOCK = 256  # samples of a block in the journal
OPTIONS = {
    "images": (1e9, "images a day"),
    "shard": (256, "images of a shard"),
    "load": (0.8, "share of its time that the busiest resource works"),
    "cores": (16, "CPU cores beside a GPU"),
    "gbit": (10, "Gbit/s of a node's link"),
    "seconds": (300, "to simulate"),
    "restart": (60, "seconds until a lost node is replaced, beside loading the model"),
    "gpu-hour": (4.0, "dollars of one GPU for an hour, with 16 cores beside it"),
    "core-hour": (0.05, "dollars of one more CPU core for an hour"),
    "tb-month": (23.0, "dollars of a TB in an object store for a month"),
}


def main() -> None:
    parser = command.parser(__doc__)
    parser.add_argument("stages", type=Path, help="what benchmarks/stages.py --json printed")
    for name, (value, what) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} ({value:g})")
    arguments = command.parse(parser)
    rows = [json.loads(line) for line in arguments.stages.read_text().splitlines()]
    stages = next(row for row in rows if row["what"] == "stages")
    arguments.image_kb = stages["image_bytes"] / 1e3
    plans = [planned(plan, stages, arguments) for plan in plans_of(stages, arguments)]
    for table in (check_table(rows, stages), plan_table(plans, arguments), loss_table(plans), store_table(arguments)):
        print("\n".join(table), end="\n\n")


def check_table(rows: Sequence[Mapping[str, Any]], stages: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was measured on a local Ray beside what the simulation says of it."""

    def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
        found = simulated_run(row, stages)
        first = sorted(found.waits)[row["actors"] - 1]  # all shards came at the start, so a wait is a time
        rate = (row["images"] - row["actors"] * row["shard"]) / (found.seconds - first)
        pairs = (row["seconds"], found.seconds), (row["running_per_s"], rate)
        told = ((f"{real:.1f} / {said:.1f}", f"{100 * (said / real - 1):+.0f} %") for real, said in pairs)
        return row["what"], f"{row['images']:,}", *(cell for pair in told for cell in pair), f"{row['others']:.1f}"

    heads: tuple[str, ...] = ("local run", "images", "seconds, measured / simulated", "difference")
    heads += ("images/s after the first shards, measured / simulated", "difference", "cores that others took")
    return markdown_table(heads, (cells(row) for row in rows if row["what"].startswith("ray")))


def simulated_run(row: Mapping[str, Any], stages: Mapping[str, Any]) -> Outcome:
    """Simulate a run of workers with one core each, which decode, encode and write; one may be killed.

    Before the first shard Ray starts, the encoder is described, workers load it and others import what decodes. Other
    work on the machine makes every core slower.
    """
    size, shards = row["shard"], math.ceil(row["images"] / row["shard"])
    pace = row["actors"] / max(row["actors"] - row["others"], 0.1)
    seconds = size * (stages["decode_s"] + stages["encode_s"]) + stages["write_s"]
    work = [Stage("shard", "core", pace * seconds), Stage("send", "wire", stages["send_s"])]
    killed, load = row["killed_after"], stages["load_s"]
    failures = [Failure(0, load, after=killed)] if killed else []
    simulation = Simulation(work, {"core": 1, "wire": 1}, nodes=row["actors"], ahead=AHEAD)
    ready = stages["start_s"] + stages["plan_s"] + load + stages["first_decode_s"]
    return simulation.run([0.0] * shards, failures, ready=ready)


class Plan(NamedTuple):
    """A kind of node: what decodes, and how long a shard takes at each stage."""

    name: str
    cores: int
    stages: list[Stage]


class Planned(NamedTuple):
    """How many nodes, and what the simulation says of them, with a node lost and without."""

    plan: Plan
    nodes: int
    slots: dict[str, int]
    calm: Outcome
    hit: Outcome


def plans_of(stages: Mapping[str, Any], arguments: Arguments) -> Iterator[Plan]:
    size, cores = arguments.shard, int(arguments.cores)
    tower, both = gpu_rates()
    read = Stage("read", "link", 8 * size * arguments.image_kb * 1e3 / (arguments.gbit * 1e9))
    decode, encode = Stage("decode", "core", size * stages["decode_s"]), Stage("encode", "gpu", size / tower)
    rest = [
        Stage("score", "core", size * stages["score_s"]),
        Stage("write", "disk", stages["write_s"] + size / BLOCK * stages["journal_s"]),
    ]
    on_cores = [read, decode, encode, *rest]
    yield Plan(f"decoded on {cores} cores", cores, on_cores)
    busy = size * (stages["decode_s"] + stages["score_s"])
    yield Plan("decoded on as many cores as the GPU can use", math.ceil(busy / encode.seconds), on_cores)
    yield Plan("decoded on the GPU", cores, [read, Stage("decode and encode", "gpu", size / both), *rest])


def gpu_rates() -> tuple[float, float]:
    """Images/s of the eager tower, and from JPEG files on with the GPU decoding, from the tables of the docs."""
    text = PERFORMANCE.read_text()
    found = (re.search(rf"^\| {re.escape(row)} \| ([\d,]+) \|", text, re.M) for row in GPU_ROWS)
    tower, both = (float(match[1].replace(",", "")) for match in found)
    return tower, both


def planned(plan: Plan, stages: Mapping[str, Any], arguments: Arguments) -> Planned:
    rate = arguments.images / 86_400 / arguments.shard  # shards per second
    slots = {"link": 1, "core": plan.cores, "gpu": 1, "disk": 1}
    nodes = max(1, math.ceil(rate * max(needs(plan, slots).values()) / arguments.load))
    arrivals, clock, chance = [], 0.0, random.Random(0)
    while clock < arguments.seconds:
        clock += chance.expovariate(rate)
        arrivals.append(clock)
    lost = Failure(0, arguments.restart + stages["load_s"], at=arguments.seconds / 3)
    runs = []
    for failures in ([], [lost]):
        simulation = Simulation(plan.stages, slots, nodes=nodes, ahead=2 * sum(slots.values()))
        runs.append(simulation.run(arrivals, failures))
    return Planned(plan, nodes, slots, *runs)


def needs(plan: Plan, slots: Mapping[str, int]) -> dict[str, float]:
    """The seconds of a node's resource that a shard takes."""
    return {name: sum(one.seconds for one in plan.stages if one.resource == name) / slots[name] for name in slots}


def plan_table(plans: Sequence[Planned], arguments: Arguments) -> Iterator[str]:
    def cells(found: Planned) -> tuple[str, ...]:
        used = {
            name: found.calm.busy[name] / (found.calm.seconds * found.nodes * found.slots[name]) for name in found.slots
        }
        first = max(used, key=lambda name: used[name])
        price = arguments.gpu_hour + max(0, found.plan.cores - 16) * arguments.core_hour
        day = 24 * found.nodes * price
        million = day / arguments.images * 1e6
        link = arguments.images / 86_400 / found.nodes * arguments.image_kb * 8 / 1e6
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in used.items())
        return (
            found.plan.name, f"{found.nodes:,}", f"{found.plan.cores:,}", first, shares, f"{link:.2f}",
            f"{statistics.quantiles(found.calm.waits, n=100)[98]:.1f}", f"{day:,.0f}", f"{million:.2f}",
        )  # fmt: skip

    heads: tuple[str, ...] = (f"{arguments.images:,.0f} images a day", "GPUs", "cores beside each")
    heads += ("first bottleneck", "in use")
    heads += ("Gbit/s in, per GPU", "99 % of shards done within, s", "dollars a day", "dollars per million")
    return markdown_table(heads, map(cells, plans))


def loss_table(plans: Sequence[Planned]) -> Iterator[str]:
    def cells(found: Planned) -> tuple[str, ...]:
        waits = [statistics.quantiles(run.waits, n=100)[98] for run in (found.calm, found.hit)]
        return (
            found.plan.name,
            str(found.hit.redone),
            f"{found.hit.lost['gpu']:.2f}",
            *(f"{wait:.1f}" for wait in waits),
        )

    heads = (
        "a node is lost",
        "shards done again",
        "seconds of GPU lost",
        "99 % within, s, before",
        "99 % within, s, with it",
    )
    return markdown_table(heads, map(cells, plans))


def store_table(arguments: Arguments) -> Iterator[str]:
    images = arguments.images * arguments.image_kb / 1e9
    features = arguments.images * (2 * 512 + 64) / 1e12  # half precision, and 64 bytes of key
    lines = {
        "images of a day, TB": f"{images:,.1f}",
        "features of a day in half precision with keys, TB": f"{features:,.2f}",
        "dollars to keep both for a month": f"{(images + features) * arguments.tb_month:,.0f}",
        "Gbit/s in, all nodes": f"{arguments.images / 86_400 * arguments.image_kb * 8 / 1e6:,.1f}",
    }
    return markdown_table(("besides", ""), lines.items())


if __name__ == "__main__":
    main()
