"""What sharding one stream costs: AUROC and FPR95 of merged observers against the sequential result, on CLIP features.

    python benchmarks/merge.py FOLDER --rows rows.jsonl                          # tables in Markdown
    python benchmarks/merge.py FOLDER --rows rows.jsonl --json                   # one JSON object per run
    python benchmarks/merge.py FOLDER --rows rows.jsonl --plot docs/images/merge.png
    python benchmarks/merge.py FOLDER --cost                                     # what a merge takes

Differences are in percentage points, sharded less sequential with the same order of samples, mean over seeds; the plot
has the standard deviation over seeds too. `score gap` is the root mean square difference of the scores in units of
their own standard deviation. `never` merges only at the end of the stream.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import PIL.Image
import torch

from unseen import checkpoint, detectors, suites
from unseen.bench import Case, Row, command, grouped, markdown_table, mean
from unseen.bench.command import Arguments
from unseen.bench.timing import median_seconds
from unseen.evaluate import Evaluation, evaluate
from unseen.report.plots import pyplot
from unseen.scale.merge import ShardedDetector

NEVER = 1 << 30
CELLS = {  # suite, unknown set -> samples between two merges
    ("imagenet200", "near"): (64, 256, 1024, NEVER),
    ("imagenet200", "textures10"): (64, 256, 1024, NEVER),
    ("imagenet200", "intel_scenes"): (64, 256, 1024, NEVER),
    ("imagenet200-lowres", "textures10"): (256, 1024, 4096, NEVER),
}
METHODS = {"pooled": ("pooled", "mean"), "online, mean": ("online", "mean"), "online, sum": ("online", "sum")}
SHARDS = (2, 4, 8, 16)
METRICS = ("auroc", "fpr95_id")


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--plot", type=Path, help="where to draw the differences")
    parser.add_argument("--cost", action="store_true", help="only the time of a merge and the size of a state")
    arguments = command.parse(parser)
    if arguments.cost:
        command.show(cost(arguments.folder), arguments, cost_table)
    else:
        command.answer(cases(arguments), arguments, functools.partial(tables, plot_to=arguments.plot))


def cases(arguments: Arguments) -> Iterator[Case]:
    for seed in command.seeds(arguments):
        for (suite, ood), intervals in CELLS.items():
            for method in arguments.methods:
                for every in intervals:
                    for shards in SHARDS:
                        key = {"suite": suite, "set": ood, "seed": seed, "method": method}
                        key |= {"shards": shards, "every": every}
                        yield Case(key, functools.partial(measure, arguments.folder, **key))


def measure(folder: Path, *, suite: str, set: str, seed: int, method: str, shards: int, every: int) -> Row:
    name, rule = METHODS[method]
    alone = sequential(folder, suite, set, seed, name)
    detector = ShardedDetector.of(
        detectors.make(name, loaded(suite, folder).labels), shards=shards, every=every, rule=rule
    )
    sharded = evaluate(detector, alone.trial)
    row: Row = {metric: 100 * sharded.metrics[metric] for metric in METRICS}
    row |= {f"{metric}_alone": 100 * alone.metrics[metric] for metric in METRICS}
    gap = (sharded.reading.score - alone.reading.score).square().mean().sqrt() / alone.reading.score.std()
    return row | {"gap": float(gap), "samples": len(alone.trial.z)}


@functools.lru_cache(2)  # cases come one cell and method after another
def sequential(folder: Path, suite: str, ood: str, seed: int, name: str) -> Evaluation:
    known = loaded(suite, folder)
    return evaluate(detectors.make(name, known.labels), known.against(ood).ordered("shuffled", seed))


@functools.cache
def loaded(name: str, folder: Path) -> suites.Suite:
    return suites.load(name, folder)


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return one row per cell, method, interval and shard count: means and deviations over seeds."""
    names = ("suite", "set", "method", "every", "shards")
    found = []
    for key, group in grouped(rows, *names).items():
        one = {**dict(zip(names, key, strict=True)), "samples": group[0]["samples"], "gap": mean(group, "gap")}
        for metric in METRICS:
            change = [row[metric] - row[f"{metric}_alone"] for row in group]
            one[f"{metric}_alone"] = mean(group, f"{metric}_alone")
            one[metric], one[f"{metric}_sd"] = statistics.mean(change), statistics.pstdev(change)
        found.append(one)
    return found


def tables(rows: list[Row], *, plot_to: Path | None = None) -> Iterator[str]:
    """Yield one Markdown table per method: a line per cell and interval, a column per shard count."""
    found = summarise(rows)
    if plot_to:
        plot(found, plot_to)
    heads = ("stream", "merged every", *(f"{n} shards" for n in SHARDS), "16 shards, score gap")
    for (method,), group in grouped(found, "method").items():
        yield f"\n**{method}**, AUROC / FPR95 less those of one observer\n"
        yield from markdown_table(heads, map(table_line, grouped(group, "suite", "set", "every").values()))


def table_line(rows: list[Row]) -> tuple[str, ...]:
    first = rows[0]
    alone = f"{first['auroc_alone']:.1f} / {first['fpr95_id_alone']:.1f}"
    what = f"{first['suite']}, {first['set']} ({first['samples']:,}; {alone})"
    cells = (" / ".join(f"{row[metric]:+.1f}" for metric in METRICS) for row in rows)
    return what, interval(first["every"]), *cells, f"{rows[-1]['gap']:.2f}"


def interval(every: int) -> str:
    return "never" if every == NEVER else f"{every:,}"


def cost(folder: Path, *, samples: int = 256) -> Iterator[Row]:
    """Yield how long a merge takes and how large a state is, with 1,000 names and 10,499 negatives of width 512.

    Times are of the processor, one thread: the machine may be busy. A merge pays from the interval on in which the
    observers save as much as it takes; moving the states comes on top.
    """
    suite = loaded("imagenet1k-surrogate", folder)
    seconds = functools.partial(median_seconds, repeat=5, warmup=0, clock=time.process_time)
    for name in ("pooled", "online"):
        detector = detectors.make(name, suite.labels)
        start, parts = detector.start(), suite.pool.z[: max(SHARDS) * samples].split(samples)
        ends = [detector.observe(start, part)[1] for part in parts]
        sample = seconds(functools.partial(detector.observe, start, torch.cat(parts))) / len(parts) / samples
        size = sum(part.nelement() * part.element_size() for part in checkpoint.flat(start).values()) / 1e6
        for shards in SHARDS:
            merge = seconds(functools.partial(detector.merge, start, ends[:shards]))
            row = {"detector": name, "state_mb": size, "us_per_sample": 1e6 * sample, "shards": shards}
            yield row | {"merge_ms": 1e3 * merge, "pays_from": merge / (sample * (1 - 1 / shards))}


def cost_table(rows: list[Row]) -> Iterator[str]:
    heads = ("detector", "state, MB", "µs per sample", "shards", "merge, ms", "pays from an interval of, samples")
    forms = ("", ".1f", ".0f", "", ".0f", ",.0f")
    lines = ([f"{value:{form}}" for value, form in zip(row.values(), forms, strict=True)] for row in rows)
    return markdown_table(heads, lines)


def plot(found: Sequence[Row], path: Path) -> None:
    """Draw the change of AUROC over the merge interval: a panel per method and stream, a line per shard count."""
    plt = pyplot()
    methods = list(dict.fromkeys(row["method"] for row in found))
    figure, axes = plt.subplots(len(methods), len(CELLS), figsize=(11, 2.3 * len(methods)), sharey="row", squeeze=False)
    for line, method in zip(axes, methods, strict=True):
        for axis, (suite, ood) in zip(line, CELLS, strict=True):
            panel(axis, [row for row in found if (row["method"], row["suite"], row["set"]) == (method, suite, ood)])
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
