"""What sharding one stream costs: AUROC and FPR95 of merged observers against the sequential result, on CLIP features.

    python benchmarks/merge.py FOLDER --rows rows.jsonl                          # tables in Markdown
    python benchmarks/merge.py FOLDER --rows rows.jsonl --json                   # one JSON object per line of them
    python benchmarks/merge.py FOLDER --rows rows.jsonl --plot docs/images/merge.png
    python benchmarks/merge.py FOLDER --cost                                     # what a merge takes

Differences are in percentage points, sharded less sequential with the same order of samples, mean over seeds; the
standard deviation over seeds is in the JSON and in the plot. `score gap` is the root mean square difference of the
scores in units of their own standard deviation. `never` merges only at the end of the stream. Rows already in the file
are not computed again, so a killed run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import PIL.Image
import torch

from unseen import detectors, suites
from unseen.evaluate import Evaluation, evaluate
from unseen.report.plots import pyplot
from unseen.scale.merge import Sharded

NEVER = 1 << 30
CELLS = {  # suite, unknown set -> samples between two merges
    ("imagenet200", "near"): (64, 256, 1024, NEVER),
    ("imagenet200", "textures10"): (64, 256, 1024, NEVER),
    ("imagenet200", "intel_scenes"): (64, 256, 1024, NEVER),
    ("imagenet200-lowres", "textures10"): (256, 1024, 4096, NEVER),
}
METHODS = {"default": ("default", "mean"), "online, mean": ("online", "mean"), "online, sum": ("online", "sum")}
SHARDS = (2, 4, 8, 16)
METRICS = ("auroc", "fpr95_id")

Row = dict[str, Any]


def main() -> None:
    options = parsed()
    torch.set_num_threads(options.threads)
    if options.cost:
        print("\n".join(cost(options.folder)))
        return
    rows = list(resumed(options))
    if options.plot:
        plot(rows, options.plot)
    for row in summarised(rows):
        if options.json:
            print(json.dumps(row))
    if not options.json:
        print("\n".join(tables(summarised(rows))))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the stored features")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="|".join(METHODS), help="some of them, with | between")
    parser.add_argument("--rows", type=Path, help="JSON lines to go on from and to append to")
    parser.add_argument("--plot", type=Path, help="where to draw the differences")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cost", action="store_true")
    return parser.parse_args()


def resumed(options: argparse.Namespace) -> Iterator[Row]:
    """Yield every row, running only what is not in the file."""
    lines = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    done = {json.dumps(row["key"], sort_keys=True): row for row in map(json.loads, lines)}
    for key in keys(options.seeds, options.methods.split("|")):
        name = json.dumps(key, sort_keys=True)
        if name not in done:
            done[name] = {"key": key, **run(options.folder, **key)}
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(done[name]) + "\n")
        yield {**key, **done[name]}


def keys(seeds: int, methods: Sequence[str]) -> Iterator[Row]:
    for seed in range(seeds):
        for (suite, ood), intervals in CELLS.items():
            for method in methods:
                for every in intervals:
                    for shards in SHARDS:
                        cell = {"suite": suite, "ood": ood, "seed": seed}
                        yield {**cell, "method": method, "shards": shards, "every": every}


def run(folder: str, *, suite: str, ood: str, seed: int, method: str, shards: int, every: int) -> Row:
    name, rule = METHODS[method]
    alone = sequential(folder, suite, ood, seed, name)
    detector = Sharded.of(detectors.make(name, loaded(suite, folder).labels), shards=shards, every=every, rule=rule)
    report = evaluate(detector, alone.trial)
    found = {one: 100 * report.metrics[one] for one in METRICS}
    found |= {f"{one}_alone": 100 * alone.metrics[one] for one in METRICS}
    gap = (report.reading.score - alone.reading.score).square().mean().sqrt() / alone.reading.score.std()
    return found | {"gap": float(gap), "samples": len(alone.trial.z)}


@functools.lru_cache(2)  # keys() asks for one cell and method after another
def sequential(folder: str, suite: str, ood: str, seed: int, name: str) -> Evaluation:
    known = loaded(suite, folder)
    return evaluate(detectors.make(name, known.labels), known.against(ood).ordered("shuffled", seed))


@functools.cache
def loaded(name: str, folder: str) -> suites.Suite:
    return suites.load(name, folder)


def summarised(rows: Sequence[Row]) -> list[Row]:
    """Return one row per cell, method, interval and shard count: means and deviations over seeds."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in ("suite", "ood", "method", "every", "shards")), []).append(row)
    found = []
    for (suite, ood, method, every, shards), members in groups.items():
        one = {"suite": suite, "ood": ood, "method": method, "every": every, "shards": shards, "seeds": len(members)}
        one |= {"samples": members[0]["samples"], "gap": statistics.mean(row["gap"] for row in members)}
        for metric in METRICS:
            change = [row[metric] - row[f"{metric}_alone"] for row in members]
            one[f"{metric}_alone"] = statistics.mean(row[f"{metric}_alone"] for row in members)
            one[metric], one[f"{metric}_sd"] = statistics.mean(change), statistics.pstdev(change)
        found.append(one)
    return found


def tables(found: Sequence[Row]) -> Iterator[str]:
    """Yield one Markdown table per method: a line per cell and interval, a column per shard count."""
    for method in dict.fromkeys(row["method"] for row in found):
        yield f"\n**{method}**, AUROC / FPR95 less those of one observer\n"
        yield "| stream | merged every | " + " | ".join(f"{n} shards" for n in SHARDS) + " | 16 shards, score gap |"
        yield "|---|--:|" + "--:|" * (len(SHARDS) + 1)
        mine = [row for row in found if row["method"] == method]
        for suite, ood, every in dict.fromkeys((row["suite"], row["ood"], row["every"]) for row in mine):
            line = [row for row in mine if (row["suite"], row["ood"], row["every"]) == (suite, ood, every)]
            first = line[0]
            what = f"{suite}, {ood} ({first['samples']:,}; {first['auroc_alone']:.1f} / {first['fpr95_id_alone']:.1f})"
            cells = " | ".join(cell(row) for row in line)
            yield f"| {what} | {interval(every)} | {cells} | {line[-1]['gap']:.2f} |"


def cell(row: Row) -> str:
    return " / ".join(f"{row[metric]:+.1f}" for metric in METRICS)


def interval(every: int) -> str:
    return "never" if every == NEVER else f"{every:,}"


def cost(folder: str, *, samples: int = 256) -> Iterator[str]:
    """Yield how long a merge takes and how large a state is, with 1,000 names and 10,499 negatives of width 512.

    Times are of the processor, one thread: the machine may be busy. A merge pays from the interval on in which the
    observers save as much as it takes; moving the states comes on top.
    """
    suite = loaded("imagenet1k-surrogate", folder)
    yield "| detector | state, MB | µs per sample | shards | merge, ms | pays from an interval of |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in ("default", "online"):
        detector = detectors.make(name, suite.labels)
        start, parts = detector.start(), suite.pool.z[: max(SHARDS) * samples].split(samples)
        ends = [detector.observe(start, part)[1] for part in parts]
        sample = seconds(detector.observe, start, torch.cat(parts)) / len(parts) / samples
        size = sum(part.nelement() * part.element_size() for part in start) / 1e6
        for shards in SHARDS:
            merge = seconds(detector.merge, start, ends[:shards])
            even = merge / (sample * (1 - 1 / shards))
            yield f"| {name} | {size:.1f} | {1e6 * sample:.0f} | {shards} | {1e3 * merge:.0f} | {even:,.0f} samples |"


def seconds(work: Callable[..., object], *what: object, times: int = 5) -> float:
    took = []
    for _ in range(times):
        began = time.process_time()
        work(*what)
        took.append(time.process_time() - began)
    return statistics.median(took)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw the change of AUROC over the merge interval: a panel per method and stream, a line per shard count."""
    plt = pyplot()
    found = summarised(rows)
    methods = list(dict.fromkeys(row["method"] for row in found))
    figure, axes = plt.subplots(len(methods), len(CELLS), figsize=(11, 2.3 * len(methods)), sharey="row", squeeze=False)
    for line, method in zip(axes, methods, strict=True):
        for axis, (suite, ood) in zip(line, CELLS, strict=True):
            panel(axis, [row for row in found if (row["method"], row["suite"], row["ood"]) == (method, suite, ood)])
            axis.set_title(f"{method}: {suite}, {ood}", fontsize=8)
        line[0].set_ylabel("AUROC, points", fontsize=8)
    axes[0][0].legend(fontsize=7, title="shards", title_fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("samples between merges", fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    PIL.Image.open(path).convert("RGB").quantize(48).save(path, optimize=True)  # a third of the bytes


def panel(axis: Any, rows: Sequence[Row]) -> None:
    intervals = list(dict.fromkeys(row["every"] for row in rows))
    for index, shards in enumerate(SHARDS):
        line = [row for row in rows if row["shards"] == shards]
        means, deviations = ([row[key] for row in line] for key in ("auroc", "auroc_sd"))
        axis.errorbar(range(len(line)), means, deviations, marker="o", markersize=3, linewidth=1, label=str(shards))
        axis.lines[-1].set_color(f"C{index}")
    axis.axhline(0, color="grey", linewidth=0.6)
    axis.set_xticks(range(len(intervals)), [interval(every) for every in intervals])
    axis.tick_params(labelsize=7)


if __name__ == "__main__":
    main()
