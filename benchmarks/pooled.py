"""The recommended detector against the frozen methods, Algorithm 1 and its oracle, on stored CLIP features.

    python benchmarks/pooled.py FOLDER sets --seeds 10 --rows rows.jsonl     # ten sets, three orders; minutes
    python benchmarks/pooled.py FOLDER one-kind --seeds 10                   # streams of known or unknown images only
    python benchmarks/pooled.py FOLDER shift --seeds 10                      # one unknown set after another, no reset
    python benchmarks/pooled.py FOLDER speed                                 # against Algorithm 1, in one run

`--suites cifar10 cifar100` takes the suites whose names and negatives the offline text tower makes (`unseen models`);
`--most 2000` draws that many images of each set, for a quick look. AUROC and FPR95 (ID is the positive class) are in
percent, of the raw score; rows have them of the margin too. label_spaces.py and ablation.py ask further.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen import LabelSpace, detectors, suites
from unseen.bench import Case, Row, command, grouped, markdown_table, mean
from unseen.bench.command import Arguments
from unseen.bench.timing import alternating_seconds
from unseen.detectors import Detector, Online, PooledEvidence, Reading
from unseen.evaluate import evaluate, oracle
from unseen.metrics import auroc
from unseen.text import text_logits
from unseen.threshold import Adaptive
from unseen.trial import Trial

SETS = {
    "imagenet200": ("near", "textures10", "intel_scenes", "flowers102", "mnist"),
    "imagenet200-lowres": ("textures10", "flowers102"),
    "imagenet1k-surrogate": ("textures10", "intel_scenes", "flowers102"),
}
CIFAR = ("tin_val", "textures10", "intel_scenes", "flowers102", "mnist")
OFFLINE = {"cifar10": ("cifar100", *CIFAR), "cifar100": ("cifar10", *CIFAR)}
NEAR = {f"tin-near-{split}": ("near",) for split in range(4)}
ORDERS = ("shuffled", "id_first", "ood_first")
FROZEN = ("mcm", "neglabel")  # their scores know no order: one run says it all
RECALLS = (0.95, 0.9, 0.8)
ORACLE_SEEDS = 3
RANKING = ("margin_auroc", "margin_fpr95_id", "auroc", "fpr95_id", "accuracy", "accuracy_frozen")


def main() -> None:
    parser = suites_parser(__doc__)
    parser.add_argument("part", choices=[*PARTS, "speed"])
    parser.add_argument(
        "--beside", nargs="*", choices=["oracle", "online"], default=["oracle", "online"], help="of `sets`"
    )
    arguments = command.parse(parser)
    if arguments.part == "speed":
        command.show(speed(arguments.folder), arguments, speed_table)
    else:
        cases, table = PARTS[arguments.part]
        command.answer(cases(arguments), arguments, table)


def suites_parser(doc: str | None, *, seeds: int = 10) -> ArgumentParser:
    """Return a parser with the options of experiments over suites."""
    parser = command.parser(doc, features=True, resumes=True, seeds=seeds)
    parser.add_argument("--suites", nargs="+", choices=[*SETS, *OFFLINE, *NEAR], default=list(SETS))
    parser.add_argument("--most", type=int, default=10**9, help="images of each set, drawn at random (default: all)")
    return parser


@functools.cache
def load_suite(name: str, folder: Path, most: int = 10**9) -> suites.Suite:
    """Return a suite with at most so many images of each set."""
    whole = suites.load(name, folder)
    order = torch.randperm(len(whole.pool.z), generator=torch.Generator().manual_seed(0))
    source = whole.pool.source[order]
    kept = torch.cat([order[source == s][:most] for s in source.unique()])
    return dataclasses.replace(whole, pool=whole.pool[kept.sort().values])


Load = Callable[[], suites.Suite]


def streams(arguments: Arguments) -> Iterator[tuple[str, str, Load]]:
    """Yield suite, unknown set and how to load the suite."""
    for name in arguments.suites:
        for ood in (SETS | OFFLINE | NEAR)[name]:
            yield name, ood, functools.partial(load_suite, name, arguments.folder, arguments.most)


def percent(metrics: dict[str, float], names: Sequence[str] = RANKING) -> Row:
    return {name: 100 * metrics[name] for name in names}


def recalls(reading: Reading, is_id: Tensor) -> Row:
    """Return for each wanted recall, and for the threshold 0, the share of known and of unknown images accepted."""
    found = accepted("baseline", reading.margin >= 0, is_id)
    for recall in RECALLS:
        rule = Adaptive(recall, derives_baseline=True)
        decisions, _ = rule.learn(rule.start(), reading.margin, reading.clarity)
        found |= accepted(f"at{100 * recall:g}", reading.margin >= decisions.threshold, is_id)
    return found


def accepted(name: str, known: Tensor, is_id: Tensor) -> Row:
    sides = (("id", is_id), ("ood", ~is_id))
    return {f"{name}_{side}": 100 * float(known[chosen].double().mean()) for side, chosen in sides}


# Every set in every order


def set_cases(arguments: Arguments) -> Iterator[Case]:
    methods = {
        "pooled": (arguments.seeds, ORDERS),
        **dict.fromkeys(FROZEN, (1, ORDERS[:1])),
        "oracle": (min(ORACLE_SEEDS, arguments.seeds), ORDERS[:1]),
        "online": (arguments.seeds, ORDERS[:1]),
    }
    for method in ("pooled", *FROZEN, *arguments.beside):
        count, orders = methods[method]
        for seed in range(arguments.first_seed, arguments.first_seed + count):
            for name, ood, load in streams(arguments):
                for order in orders:
                    key = {"part": "sets", "suite": name, "set": ood, "order": order, "seed": seed, "method": method}
                    yield Case(key, functools.partial(rank, load, ood, order, seed, method))


def rank(load: Load, ood: str, order: str, seed: int, method: str) -> Row:
    trial, labels = load().against(ood).ordered(order, seed), load().labels
    if method == "oracle":
        return percent(oracle(Online(labels), trial).metrics)
    evaluation = evaluate(detectors.make(method, labels), trial)
    return percent(evaluation.metrics) | (recalls(evaluation.reading, trial.is_id) if method == "pooled" else {})


def set_tables(rows: list[Row]) -> Iterator[str]:
    by = grouped(rows, "suite", "set", "method", "order")
    beside = [method for method in ("online", "oracle") if any(row["method"] == method for row in rows)]
    lines, gaps = [], {"auroc": [], "fpr95_id": []}
    for name, ood in grouped(rows, "suite", "set"):
        mine = [by[name, ood, "pooled", order] for order in ORDERS]
        frozen = [by[name, ood, method, "shuffled"] for method in FROZEN]
        best = {
            "auroc": max(mean(one, "auroc") for one in frozen),
            "fpr95_id": min(mean(one, "fpr95_id") for one in frozen),
        }
        for metric, sign in (("auroc", 1), ("fpr95_id", -1)) if "oracle" in beside else ():
            ends = mine[0], by[name, ood, "oracle", "shuffled"]
            gaps[metric].append([sign * (mean(end, metric) - best[metric]) for end in ends])
        worst = min(row["auroc"] for group in mine for row in group) - best["auroc"]
        lowest = min(mean(group, "auroc") for group in mine) - best["auroc"]
        others = (by[name, ood, method, "shuffled"] for method in (*FROZEN, *beside))
        lines.append((f"{name} {ood}", *map(both, [*others, *mine]), f"{lowest:+.1f} (any seed {worst:+.1f})"))
    heads = ("set", "MCM", "NegLabel", *beside, "shuffled", "ID first", "OOD first", "worst - best frozen")
    yield from markdown_table(heads, lines)
    for metric, gap in gaps.items():
        yield f"\ngap to the oracle closed, {metric}: {share_closed(gap)} of the sum of gaps"
    pooled = [row for row in rows if row["method"] == "pooled"]
    yield from recall_tables(pooled)
    yield from accuracy_table(pooled)


def both(rows: list[Row]) -> str:
    return f"{mean(rows, 'auroc'):.1f} / {mean(rows, 'fpr95_id'):.1f}"


def share_closed(gaps: Sequence[Sequence[float]]) -> str:
    """Return how much of the way from the best frozen method to the oracle was gone, of sets with a way to go."""
    ways = [(gone, way) for gone, way in gaps if way >= 1]
    return f"{100 * sum(gone for gone, _ in ways) / sum(way for _, way in ways):.0f} %" if ways else "-"


def recall_tables(rows: list[Row]) -> Iterator[str]:
    yield "\nRealised ID recall (OOD accepted), mean over seeds; [lowest, highest] recall of a seed\n"
    names = ("baseline", *(f"at{100 * recall:g}" for recall in RECALLS))
    heads = ("set", "order", "at the baseline", *(f"wanted {100 * recall:g} %" for recall in RECALLS))
    groups = grouped(rows, "suite", "set", "order").items()
    lines = ((f"{suite} {ood}", order, *(realised(group, at) for at in names)) for (suite, ood, order), group in groups)
    yield from markdown_table(heads, lines)
    for recall in RECALLS:
        off = [row[f"at{100 * recall:g}_id"] - 100 * recall for row in rows]
        below, above = sum(x < -3 for x in off), sum(x > 3 for x in off)
        yield f"\nwanted {100 * recall:g} %: off by {min(off):+.1f} to {max(off):+.1f} points over {len(off)} streams;"
        yield f"{below} more than three points under, {above} over"


def realised(rows: list[Row], at: str) -> str:
    values = [row[f"{at}_id"] for row in rows]
    return f"{mean(rows, f'{at}_id'):.1f} ({mean(rows, f'{at}_ood'):.1f}) [{min(values):.1f}, {max(values):.1f}]"


def accuracy_table(rows: list[Row]) -> Iterator[str]:
    lines = []
    for (name, ood), group in grouped(rows, "suite", "set").items():
        orders = grouped(group, "order")
        low = min(row["accuracy"] - row["accuracy_frozen"] for row in group)
        cells = (f"{mean(orders[order,], 'accuracy'):.1f}" for order in ORDERS)
        lines.append((f"{name} {ood}", f"{mean(group, 'accuracy_frozen'):.1f}", *cells, f"{low:+.1f}"))
    yield ""
    heads = ("set", "ID accuracy, frozen", "shuffled", "ID first", "OOD first", "lowest seed - frozen")
    yield from markdown_table(heads, lines)


# Streams of one kind


def one_kind_cases(arguments: Arguments) -> Iterator[Case]:
    for name, ood, load in streams(arguments):
        for seed in command.seeds(arguments):
            key = {"part": "one-kind", "suite": name, "set": ood, "seed": seed}
            yield Case(key, functools.partial(streams_of_one_kind, load, ood, seed))


def streams_of_one_kind(load: Load, ood: str, seed: int) -> Row:
    """Return AUROC of two separate streams pooled, and of score() on both other halves after one half of one kind."""
    labels, trial = load().labels, load().against(ood).ordered("shuffled", seed)
    detector = PooledEvidence(labels)
    halves = [trial.is_id.nonzero().squeeze(1), (~trial.is_id).nonzero().squeeze(1)]
    online = [detector.observe(detector.start(), trial.z[half])[0] for half in halves]
    row: Row = {"two": 100 * auroc(online[0].score, online[1].score)}
    for reading, half, side in zip(online, halves, ("_id", "_ood"), strict=True):
        shares = recalls(reading, trial.is_id[half])
        row |= {name: value for name, value in shares.items() if name.endswith(side)}
    held = [half[len(half) // 2 :] for half in halves]
    for kind, half in zip(("after_id", "after_ood"), halves, strict=True):
        _, state = detector.observe(detector.start(), trial.z[half[: len(half) // 2]])
        row[kind] = ranked(detector, state, trial, held)
        rest = trial[torch.cat(held)].ordered("shuffled", seed)
        row[f"{kind}_then"] = within(detector.observe(state, rest.z)[0].score, rest.is_id)
    row["best_frozen"] = max(ranked(detectors.make(name, labels), None, trial, held) for name in FROZEN)
    row["evidence"] = 100 * auroc(*(frozen_evidence(labels, trial.z[rows]) for rows in held))
    return row


def frozen_evidence(labels: LabelSpace, z: Tensor) -> Tensor:
    """Return what the frozen text alone says."""
    detector = PooledEvidence(labels)
    return detector.evidence(text_logits(labels, z, tau=detector.tau)).value


def ranked(detector: Detector[Any], state: Any, trial: Trial, held: Sequence[Tensor]) -> float:
    return 100 * auroc(*(detector.score(state, trial.z[rows]).score for rows in held))


def within(score: Tensor, is_id: Tensor) -> float:
    return 100 * auroc(score[is_id], score[~is_id])


def one_kind_table(rows: list[Row]) -> Iterator[str]:
    columns = {
        "two streams": "two",
        "ID only, then mixed": "after_id_then",
        "OOD only, then mixed": "after_ood_then",
        "score() after ID": "after_id",
        "after OOD": "after_ood",
        "frozen evidence": "evidence",
        "best frozen": "best_frozen",
        "recall at 95": "at95_id",
        "OOD accepted": "at95_ood",
    }
    groups = grouped(rows, "suite", "set").items()
    lines = ((f"{suite} {ood}", *(f"{mean(group, c):.1f}" for c in columns.values())) for (suite, ood), group in groups)
    return markdown_table(("set", *columns), lines)


# One unknown set after another


def shift_cases(arguments: Arguments) -> Iterator[Case]:
    for name in arguments.suites:
        load = functools.partial(load_suite, name, arguments.folder, arguments.most)
        for seed in command.seeds(arguments):
            job = functools.partial(shifted, load, (SETS | OFFLINE | NEAR)[name], seed)
            yield Case({"part": "shift", "suite": name, "seed": seed}, job)


def shifted(load: Load, unknown: Sequence[str], seed: int) -> Row:
    """Return mean AUROC within the segments of a drift, going on and with a reset before each."""
    trial = load().against(*unknown).ordered("drift", seed)
    detector = PooledEvidence(load().labels)
    reading, _ = detector.observe(detector.start(), trial.z)
    going_on, reset = [], []
    for part in segments(trial):
        fresh, _ = detector.observe(detector.start(), trial.z[part])
        going_on.append(within(reading.score[part], trial.is_id[part]))
        reset.append(within(fresh.score, trial.is_id[part]))
    return {"going_on": statistics.fmean(going_on), "reset": statistics.fmean(reset)}


def segments(trial: Trial) -> list[slice]:
    """Return the part of the stream of each unknown set: from its first sample to that of the next."""
    known = trial.source[trial.is_id][0]
    first = {int(s): int((trial.source == s).nonzero()[0]) for s in trial.source.unique() if s != known}
    edges = [0, *sorted(first.values())[1:], len(trial.z)]
    return [slice(*pair) for pair in itertools.pairwise(edges)]


def shift_table(rows: list[Row]) -> Iterator[str]:
    pairs = {name: (mean(group, "going_on"), mean(group, "reset")) for (name,), group in grouped(rows, "suite").items()}
    lines = ((name, f"{on:.2f}", f"{reset:.2f}", f"{reset - on:+.2f}") for name, (on, reset) in pairs.items())
    return markdown_table(("suite", "going on", "reset before each set", "cost"), lines)


# Speed


def speed(folder: Path) -> Iterator[Row]:
    """Yield seconds of one core for 2,048 samples, median of five rounds in alternation."""
    for name in ("imagenet200", "imagenet1k-surrogate"):
        labels = load_suite(name, folder).labels
        z = load_suite(name, folder).against("textures10").ordered("shuffled", 0).z[:2048]
        found: list[Detector[Any]] = [Online(labels), PooledEvidence(labels)]
        works = {one.name: functools.partial(one.observe, one.start(), z) for one in found}
        times = alternating_seconds(works, rounds=5, clock=time.process_time)
        medians = {f"{method}_seconds": statistics.median(seconds) for method, seconds in times.items()}
        yield {"suite": name, "K": len(labels.names), "L": len(labels.negatives), **medians}


def speed_table(rows: list[Row]) -> Iterator[str]:
    heads = ("K", "L", "Algorithm 1, blocked, s", "pooled, s", "ratio")
    pairs = ((row, row["online_seconds"], row["pooled_seconds"]) for row in rows)
    lines = ((f"{r['K']}", f"{r['L']}", f"{one:.2f}", f"{two:.2f}", f"{two / one:.2f}") for r, one, two in pairs)
    return markdown_table(heads, lines)


PARTS: dict[str, tuple[Callable[[Arguments], Iterator[Case]], Callable[[list[Row]], Iterator[str]]]] = {
    "sets": (set_cases, set_tables),
    "one-kind": (one_kind_cases, one_kind_table),
    "shift": (shift_cases, shift_table),
}

if __name__ == "__main__":
    main()
