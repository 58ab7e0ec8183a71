"""What sharding one stream costs: AUROC and FPR95 of merged observers against the sequential result, on CLIP features.

    python benchmarks/merge.py FOLDER --rows rows.jsonl                          # tables in Markdown
    python benchmarks/merge.py FOLDER --rows rows.jsonl --json                   # one JSON object per run
    python benchmarks/merge.py FOLDER --rows rows.jsonl --plot merge.png
    python benchmarks/merge.py FOLDER --cost                                     # what a merge takes
    python benchmarks/merge.py FOLDER --columns                                  # every column of every verdict

Differences are in percentage points, sharded less sequential with the same order of samples, mean over seeds; the plot
has the standard deviation over seeds too. `margin gap` is the largest difference of a margin, in nats. `never` merges
only at the end of the stream. `pooled` merges at each of its updates, whatever was asked; `pooled, long rounds` does
not, and shows what that would cost. With `--orders` other than shuffled, and for `pooled, long rounds`, only 16
observers are tried, merged after 256 and 1,024 samples. `--columns` has all orders and streams of `pooled` with 16
observers merged after 1,024 samples, and prints the largest differences of each column of verdicts. Which part of a
state must be fresh: benchmarks/merge_parts.py.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import PIL.Image

from unseen import Session, detectors
from unseen.detectors.state import flatten
from unseen.scale.merge import ShardedDetector
from unseen_bench import orders as arrival
from unseen_bench import suites
from unseen_bench.evaluate import Evaluation, evaluate
from unseen_bench.exhibits.plots import pyplot
from unseen_bench.run import Case, Row, command, grouped, markdown_table, mean
from unseen_bench.run.command import Arguments
from unseen_bench.run.timing import median_seconds

NEVER = 1 << 30
CELLS = {  # suite, unknown set -> samples between two merges
    ("imagenet200", "near"): (64, 256, 1024, NEVER),
    ("imagenet200", "textures10"): (64, 256, 1024, NEVER),
    ("imagenet200", "intel_scenes"): (64, 256, 1024, NEVER),
    ("imagenet200-lowres", "textures10"): (256, 1024, 4096, NEVER),
}


class LongRounds(detectors.PooledEvidence):
    """The detector without its own say in when a stream is merged: always after the same number of samples."""

    def merge_interval(self, state: Any, most: int) -> int:
        return most


METHODS = {
    "pooled": (detectors.PooledEvidence, "mean"),
    "pooled, long rounds": (LongRounds, "mean"),
    "online, mean": (detectors.Online, "mean"),
    "online, sum": (detectors.Online, "sum"),
}
SHARDS = (2, 4, 8, 16)
SHUFFLED = "shuffled"
ORDERS = (SHUFFLED, *(name for name in arrival.ORDERS if name not in (SHUFFLED, "id_only", "ood_only")))
METRICS = ("margin_auroc", "margin_fpr95_id", "balanced")


def main() -> None:
    parser = command.parser(__doc__, features=True, resumes=True, seeds=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=[SHUFFLED])
    parser.add_argument("--plot", type=Path, help="where to draw the differences")
    parser.add_argument("--cost", action="store_true", help="only the time of a merge and the size of a state")
    parser.add_argument("--columns", action="store_true", help="only the columns of verdicts, all orders, one seed")
    arguments = command.parse(parser)
    if arguments.cost:
        command.show(cost(arguments.folder), arguments, cost_table)
    elif arguments.columns:
        command.show(columns(arguments.folder, arguments.first_seed), arguments, columns_table)
    else:
        command.run_and_print(cases(arguments), arguments, functools.partial(tables, plot_to=arguments.plot))


def cases(arguments: Arguments) -> Iterator[Case]:
    for seed in command.seeds(arguments):
        for suite, ood in CELLS:
            for order in arguments.orders:
                for method in arguments.methods:
                    for every, shards in settings(suite, ood, is_whole=order == SHUFFLED and "long" not in method):
                        key = {"suite": suite, "set": ood, "order": order, "seed": seed, "method": method}
                        key |= {"shards": shards, "every": every}
                        yield Case(key, functools.partial(measure, arguments.folder, **key))


def settings(suite: str, ood: str, *, is_whole: bool) -> Iterator[tuple[int, int]]:
    """Yield samples between merges and observers."""
    return product(CELLS[suite, ood], SHARDS) if is_whole else iter([(256, max(SHARDS)), (1024, max(SHARDS))])


def measure(folder: Path, *, suite: str, set: str, order: str, seed: int, method: str, shards: int, every: int) -> Row:
    kind, rule = METHODS[method]
    alone = sequential(folder, suite, set, order, seed, kind)
    detector = ShardedDetector.of(kind(loaded(suite, folder).labels), shards=shards, every=every, rule=rule)
    sharded = evaluate(detector, alone.trial)
    row: Row = {metric: 100 * sharded.metrics[metric] for metric in METRICS}
    row |= {f"{metric}_alone": 100 * alone.metrics[metric] for metric in METRICS}
    gap = (sharded.output.margin - alone.output.margin).abs().max()
    return row | {"gap": float(gap), "samples": len(alone.trial.z)}


def columns(folder: Path, seed: int) -> Iterator[Row]:
    """Yield for each stream and order how many verdicts and names differ, and by how much the numbers do."""
    for (suite, ood), order in product(CELLS, arrival.ORDERS):
        labels = loaded(suite, folder).labels
        trial = loaded(suite, folder).against(ood).ordered(order, seed)
        sharded = ShardedDetector.of(detectors.PooledEvidence(labels), shards=max(SHARDS), every=1024)
        one, many = (Session(detector).observe(trial.z).structured() for detector in (sharded.detector, sharded))
        row = {"suite": suite, "set": ood, "order": order, "samples": len(trial.z)}
        row |= {f"{name}_differ": int((one[name] != many[name]).sum()) for name in ("known", "label", "warming")}
        yield row | {name: float(abs(one[name] - many[name]).max()) for name in ("margin", "threshold", "p_known")}


def columns_table(rows: list[Row]) -> Iterator[str]:
    """Yield the worst of all orders for each stream."""
    heads: tuple[str, ...] = ("stream", "orders", "samples", "verdicts that differ", "names", "warming")
    heads += ("largest difference of margin", "of threshold", "of p_known")
    lines = []
    for (suite, ood), group in grouped(rows, "suite", "set").items():
        counts = [
            sum(row[name] for row in group) for name in ("samples", "known_differ", "label_differ", "warming_differ")
        ]
        gaps = [max(row[name] for row in group) for name in ("margin", "threshold", "p_known")]
        lines.append((f"{suite}, {ood}", str(len(group)), *(f"{n:,}" for n in counts), *(f"{gap:.0e}" for gap in gaps)))
    return markdown_table(heads, lines)


@functools.lru_cache(2)  # cases come one cell and method after another
def sequential(folder: Path, suite: str, ood: str, order: str, seed: int, kind: type[Any]) -> Evaluation:
    known = loaded(suite, folder)
    return evaluate(kind(known.labels), known.against(ood).ordered(order, seed))


@functools.cache
def loaded(name: str, folder: Path) -> suites.Suite:
    return suites.load(name, folder)


def summarise(rows: Sequence[Row]) -> list[Row]:
    """One row per cell, order, method, interval and shard count: means and deviations over seeds."""
    names = ("suite", "set", "order", "method", "every", "shards")
    found = []
    for key, group in grouped(rows, *names).items():
        one = {
            **dict(zip(names, key, strict=True)),
            "samples": group[0]["samples"],
            "gap": max(row["gap"] for row in group),
        }
        for metric in METRICS:
            change = [row[metric] - row[f"{metric}_alone"] for row in group]
            one[f"{metric}_alone"] = mean(group, f"{metric}_alone")
            one[metric], one[f"{metric}_sd"] = statistics.mean(change), statistics.pstdev(change)
        found.append(one)
    return found


def tables(rows: list[Row], *, plot_to: Path | None = None) -> Iterator[str]:
    """Yield one table per method, a line per cell and interval, a column per shard count; then one of all orders."""
    found = summarise(rows)
    by_order = [row for row in found if row["every"] in (256, 1024) and row["shards"] == max(SHARDS)]
    shuffled = [row for row in found if row["order"] == SHUFFLED and "long" not in row["method"]]
    if plot_to:
        plot(by_order, plot_to)
    heads = ("stream", "merged every", *(f"{n} shards" for n in SHARDS), "16 shards, margin gap")
    for (method,), group in grouped(shuffled, "method").items():
        yield f"\n**{method}**, shuffled: AUROC / FPR95 / balanced accuracy less those of one observer\n"
        yield from markdown_table(heads, map(table_line, grouped(group, "suite", "set", "every").values()))
    for (method, every), group in grouped(by_order, "method", "every").items():
        yield f"\n**{method}**, 16 shards merged every {every:,}: the same by order\n"
        yield from order_table(group)


def order_table(rows: list[Row]) -> Iterator[str]:
    streams = list(grouped(rows, "suite", "set"))
    lines = (
        (order, *(changes(one) for one in sorted(group, key=lambda row: streams.index((row["suite"], row["set"])))))
        for (order,), group in grouped(rows, "order").items()
    )
    return markdown_table(("order", *map(", ".join, streams)), lines)


def changes(row: Row) -> str:
    return " / ".join(f"{row[metric]:+.1f}" for metric in METRICS)


def table_line(rows: list[Row]) -> tuple[str, ...]:
    first = rows[0]
    alone = " / ".join(f"{first[f'{metric}_alone']:.1f}" for metric in METRICS)
    what = f"{first['suite']}, {first['set']} ({first['samples']:,}; {alone})"
    return what, interval(first["every"]), *map(changes, rows), f"{rows[-1]['gap']:.1g}"


def interval(every: int) -> str:
    return "never" if every == NEVER else f"{every:,}"


def cost(folder: Path, *, samples: int = 256) -> Iterator[Row]:
    """Yield what a round of `samples` costs, with 1,000 names and 10,499 negatives of width 512.

    Times are of the processor, one thread: the machine may be busy. Sending comes on top; `sent` is what goes to each
    observer for the round before, and nothing else of the state does.
    """
    suite = loaded("imagenet1k-surrogate", folder)
    seconds = functools.partial(median_seconds, repeat=5, warmup=1, clock=time.process_time)
    for name in ("pooled", "online"):
        detector = detectors.make(name, suite.labels)
        start, z = detector.observe(detector.start(), suite.pool.z[: 16 * samples])[1], suite.pool.z[-samples:]
        alone = seconds(functools.partial(detector.observe, start, z))
        for shards in SHARDS:
            taught = [detector.observe_part(start, part)[1] for part in z.chunk(shards)]
            part = seconds(functools.partial(detector.observe_part, start, z[: samples // shards]))
            merge = seconds(functools.partial(detector.merge, start, taught))
            sent = sum(map(megabytes, taught)) if name == "pooled" else megabytes(start)
            row = {"detector": name, "state_mb": megabytes(start), "sent_mb": sent, "alone_ms": 1e3 * alone}
            row |= {"shards": shards, "part_ms": 1e3 * part, "merge_ms": 1e3 * merge}
            yield row | {"speed_up": alone / (part + merge)}


def megabytes(state: Any) -> float:
    return sum(part.nelement() * part.element_size() for part in flatten(state).values()) / 1e6


def cost_table(rows: list[Row]) -> Iterator[str]:
    heads = ("detector", "state, MB", "sent to each, MB", "one observer, ms", "shards", "a part, ms", "merge, ms")
    forms = ("", ".1f", ".2f", ".0f", "", ".1f", ".1f", ".1f")
    lines = ([f"{value:{form}}" for value, form in zip(row.values(), forms, strict=True)] for row in rows)
    return markdown_table((*heads, "times as fast at most"), lines)


def plot(found: Sequence[Row], path: Path) -> None:
    """Draw the change of AUROC with 16 observers merged every 1,024 samples, by order: a panel per stream."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(CELLS), figsize=(11, 3), sharey=True)
    for axis, (suite, ood) in zip(axes, CELLS, strict=True):
        panel(axis, [row for row in found if (row["suite"], row["set"], row["every"]) == (suite, ood, 1024)])
        axis.set_title(f"{suite}, {ood}", fontsize=8)
    axes[0].set_ylabel("AUROC less that of one observer, points", fontsize=7)
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    PIL.Image.open(path).convert("RGB").quantize(48).save(path, optimize=True)  # a third of the bytes


def panel(axis: Any, rows: Sequence[Row]) -> None:
    orders = list(dict.fromkeys(row["order"] for row in rows))
    for (method,), group in grouped(rows, "method").items():
        means, deviations = ([row[key] for row in group] for key in ("margin_auroc", "margin_auroc_sd"))
        places = [orders.index(row["order"]) for row in group]
        axis.errorbar(places, means, deviations, marker="o", markersize=4, linestyle="none", label=method)
    axis.axhline(0, color="grey", linewidth=0.6)
    axis.axhline(-0.5, color="grey", linewidth=0.6, linestyle="dotted")
    axis.set_xticks(range(len(orders)), orders, rotation=60, ha="right")
    axis.tick_params(labelsize=7)


if __name__ == "__main__":
    main()
