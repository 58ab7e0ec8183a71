"""Every figure of docs/method.md: the default detector against the bars it was made for, on stored CLIP features.

    python benchmarks/default.py FOLDER sets --seeds 10 --rows rows.jsonl     # ten sets, three orders; minutes
    python benchmarks/default.py FOLDER alone --seeds 10 --rows rows.jsonl    # streams of one kind
    python benchmarks/default.py FOLDER subsets --seeds 5 --rows rows.jsonl   # random halves of the known names
    python benchmarks/default.py FOLDER held --seeds 3 --rows rows.jsonl      # label spaces nothing was chosen on
    python benchmarks/default.py FOLDER shift --seeds 10 --rows rows.jsonl    # one unknown set after another, no reset
    python benchmarks/default.py FOLDER ablation --seeds 3 --rows rows.jsonl  # each part taken away
    python benchmarks/default.py FOLDER speed                                 # against Algorithm 1, in one run

`--suites cifar10 cifar100` takes the suites whose names and negatives the offline text tower makes (`unseen models`);
`--most 2000` draws that many images of each set, for a quick look. `held --first-seed 0 --seeds 2` are the label spaces
that the rule was chosen on.

Rows already in the file are not computed again, so a killed run goes on where it stopped. AUROC and FPR95 (ID is the
positive class) are in percent.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from unseen import LabelSpace, detectors, suites
from unseen.detectors import Detector, Online, PooledEvidence, Reading
from unseen.detectors.pooled import detector as module
from unseen.evaluate import evaluate, oracle
from unseen.features import Features, load_features
from unseen.metrics import auroc, summary
from unseen.text import neglabel
from unseen.threshold import Adaptive
from unseen.trial import Trial

SETS = {
    "imagenet200": ("near", "textures10", "intel_scenes", "flowers102", "mnist"),
    "imagenet200-lowres": ("textures10", "flowers102"),
    "imagenet1k-surrogate": ("textures10", "intel_scenes", "flowers102"),
}
CIFAR = ("tin_val", "textures10", "intel_scenes", "flowers102", "mnist")
OFFLINE = {"cifar10": ("cifar100", *CIFAR), "cifar100": ("cifar10", *CIFAR)}
ORDERS = ("shuffled", "id_first", "ood_first")
FROZEN = ("mcm", "neglabel")  # their scores know no order: one run says it all
RECALLS = (0.95, 0.9, 0.8)
ORACLE_SEEDS = 3

Row = dict[str, Any]
Job = Callable[[], Row]


def main() -> None:
    arguments = parsed()
    torch.set_num_threads(arguments.threads)
    if arguments.part == "speed":
        speed(arguments.folder)
        return
    jobs, show = PARTS[arguments.part]
    show(list(resumed(jobs(arguments), arguments.rows)))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the stored features")
    parser.add_argument("part", choices=[*PARTS, "speed"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=2, help="of `held`: 0 and 1 were looked at while choosing")
    parser.add_argument("--suites", nargs="+", choices=[*SETS, *OFFLINE], default=list(SETS))
    parser.add_argument(
        "--beside", nargs="*", choices=["oracle", "online"], default=["oracle", "online"], help="of `sets`"
    )
    parser.add_argument("--most", type=int, default=10**9, help="images of each set, drawn at random (default: all)")
    parser.add_argument("--variants", nargs="*", help="of `ablation`: only these (default: all)")
    parser.add_argument("--rows", type=Path, help="JSON lines to go on from and to append to")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def resumed(jobs: Iterable[tuple[Row, Job]], path: Path | None) -> Iterator[Row]:
    """Yield every row, running only the jobs whose row is not in the file."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    done = {json.dumps(row["key"], sort_keys=True): row for row in map(json.loads, lines)}
    for key, job in jobs:
        name = json.dumps(key, sort_keys=True)
        if name not in done:
            done[name] = {"key": key, **job()}
            if path:
                with path.open("a") as file:
                    file.write(json.dumps(done[name]) + "\n")
        yield {**key, **done[name]}


@functools.cache
def suite(name: str, folder: str, most: int = 10**9) -> suites.Suite:
    """Return a suite with at most so many images of each set."""
    whole = suites.load(name, folder)
    order = torch.randperm(len(whole.pool.z), generator=torch.Generator().manual_seed(0))
    source = whole.pool.source[order]
    kept = torch.cat([order[source == s][:most] for s in source.unique()])
    return dataclasses.replace(whole, pool=whole.pool[kept.sort().values])


def cells(arguments: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], suites.Suite]]]:
    for name, unknown in chosen(arguments).items():
        for ood in unknown:
            yield name, ood, functools.partial(suite, name, arguments.folder, arguments.most)


def chosen(arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    return {name: (SETS | OFFLINE)[name] for name in arguments.suites}


def sets(arguments: argparse.Namespace) -> Iterator[tuple[Row, Job]]:
    methods = {
        "default": (arguments.seeds, ORDERS),
        **dict.fromkeys(FROZEN, (1, ORDERS[:1])),
        "oracle": (min(ORACLE_SEEDS, arguments.seeds), ORDERS[:1]),
        "online": (arguments.seeds, ORDERS[:1]),
    }
    for method in ("default", *FROZEN, *arguments.beside):
        seeds, orders = methods[method]
        for seed in range(seeds):
            for name, ood, load in cells(arguments):
                for order in orders:
                    key = {"part": "sets", "suite": name, "set": ood, "order": order, "seed": seed, "method": method}
                    yield key, functools.partial(one_run, load, ood, order, seed, method)


def one_run(load: Callable[[], suites.Suite], ood: str, order: str, seed: int, method: str) -> Row:
    trial, labels = load().against(ood).ordered(order, seed), load().labels
    report = oracle(Online(labels), trial) if method == "oracle" else evaluate(detectors.make(method, labels), trial)
    kept = {name: 100 * report.metrics[name] for name in ("auroc", "fpr95_id", "accuracy", "accuracy_frozen")}
    return kept | (verdicts(report.reading, trial.is_id) if method == "default" else {})


def verdicts(reading: Reading, is_id: Tensor) -> Row:
    """Return, for each wanted recall, the realised one and the share of unknown images that were accepted."""
    found: Row = {}
    for recall in RECALLS:
        rule = Adaptive(recall, derives_baseline=True)
        decisions, _ = rule.learn(rule.start(), reading.margin)
        found |= accepted(f"at{100 * recall:g}", reading.margin >= decisions.threshold, is_id)
    return found | accepted("even", reading.margin >= 0, is_id)


def accepted(name: str, known: Tensor, is_id: Tensor) -> Row:
    return {f"{name}_{side}": percent(known[chosen]) for side, chosen in (("id", is_id), ("ood", ~is_id))}


def percent(claims: Tensor) -> float:
    return 100 * float(claims.double().mean())


def alone(arguments: argparse.Namespace) -> Iterator[tuple[Row, Job]]:
    for name, ood, load in cells(arguments):
        for seed in range(arguments.seeds):
            key = {"part": "alone", "suite": name, "set": ood, "seed": seed}
            yield key, functools.partial(streams_of_one_kind, load, ood, seed)


def streams_of_one_kind(load: Callable[[], suites.Suite], ood: str, seed: int) -> Row:
    """Return AUROC of two separate streams pooled, and of score() on both other halves after one half of one kind."""
    labels, trial = load().labels, load().against(ood).ordered("shuffled", seed)
    detector = PooledEvidence(labels)
    halves = [trial.is_id.nonzero().squeeze(1), (~trial.is_id).nonzero().squeeze(1)]
    online = [detector.observe(detector.start(), trial.z[half])[0] for half in halves]
    row = {"two": 100 * auroc(online[0].score, online[1].score)}
    row |= {key: value for key, value in verdicts(online[0], trial.is_id[halves[0]]).items() if key.endswith("_id")}
    row |= {key: value for key, value in verdicts(online[1], trial.is_id[halves[1]]).items() if key.endswith("_ood")}
    held = [half[len(half) // 2 :] for half in halves]
    for kind, half in zip(("after_id", "after_ood"), halves, strict=True):
        _, state = detector.observe(detector.start(), trial.z[half[: len(half) // 2]])
        row[kind] = ranked(detector, state, trial, held)
        row[f"{kind}_then"] = mixed(detector, state, trial, torch.cat(held), seed)
    row["best_frozen"] = max(ranked(detectors.make(name, labels), None, trial, held) for name in FROZEN)
    row["evidence"] = ranked(PooledEvidence(labels, share=0.0), detector.start(), trial, held)
    return row


def mixed(detector: Detector[Any], state: Any, trial: Trial, held: Tensor, seed: int) -> float:
    """Return AUROC of the other halves, shuffled, as they arrive while the detector goes on learning."""
    part = trial[held].ordered("shuffled", seed)
    return within(detector.observe(state, part.z)[0].score, part.is_id)


def ranked(detector: Detector[Any], state: Any, trial: Trial, held: Sequence[Tensor]) -> float:
    return 100 * auroc(*(detector.score(state, trial.z[rows]).score for rows in held))


def subsets(arguments: argparse.Namespace) -> Iterator[tuple[Row, Job]]:
    for name, ood, load in cells(arguments):
        for seed in range(arguments.seeds):
            for order in ORDERS:
                key = {"part": "subsets", "suite": name, "set": ood, "order": order, "seed": seed}
                yield key, functools.partial(half_of_the_names, load, ood, order, seed)


def half_of_the_names(load: Callable[[], suites.Suite], ood: str, order: str, seed: int) -> Row:
    """Return the metrics with a random half of the known names (and of their images) left out of the world."""
    labels, pool = load().labels, load().against(ood)
    names = torch.randperm(len(labels.names), generator=torch.Generator().manual_seed(seed))[: len(labels.names) // 2]
    place = torch.full((len(labels.names) + 1,), -1)  # the last place is where -1, the unknown, points
    place[names] = torch.arange(len(names))
    pool = pool[(~pool.is_id | (place[pool.label] >= 0)).nonzero().squeeze(1)]
    trial = dataclasses.replace(pool, label=place[pool.label]).ordered(order, seed)
    fewer = dataclasses.replace(
        labels, names=tuple(labels.names[i] for i in names), id_anchors=labels.id_anchors[names]
    )
    report = evaluate(PooledEvidence(fewer), trial)
    frozen = max(evaluate(detectors.make(name, fewer), trial).metrics["auroc"] for name in FROZEN)
    return {
        "auroc": 100 * report.metrics["auroc"],
        "best_frozen": 100 * frozen,
        **verdicts(report.reading, trial.is_id),
    }


def shift(arguments: argparse.Namespace) -> Iterator[tuple[Row, Job]]:
    for name, unknown in chosen(arguments).items():
        for seed in range(arguments.seeds):
            key = {"part": "shift", "suite": name, "seed": seed}
            yield (
                key,
                functools.partial(
                    shifted, functools.partial(suite, name, arguments.folder, arguments.most), unknown, seed
                ),
            )


def shifted(load: Callable[[], suites.Suite], unknown: Sequence[str], seed: int) -> Row:
    """Return mean AUROC within the segments of a temporal shift, going on and with a reset before each."""
    labels = load().labels
    trial = load().against(*unknown).ordered("temporal", seed)
    detector = PooledEvidence(labels)
    reading, _ = detector.observe(detector.start(), trial.z)
    going_on, reset = [], []
    for part in segments(trial):
        fresh, _ = detector.observe(detector.start(), trial.z[part])
        going_on.append(within(reading.score[part], trial.is_id[part]))
        reset.append(within(fresh.score, trial.is_id[part]))
    return {"going_on": statistics.fmean(going_on), "reset": statistics.fmean(reset)}


def segments(trial: Trial) -> list[slice]:
    """Return where each unknown set reigns: from its first sample to that of the next."""
    known = trial.source[trial.is_id][0]
    first = {int(s): int((trial.source == s).nonzero()[0]) for s in trial.source.unique() if s != known}
    edges = [0, *sorted(first.values())[1:], len(trial.z)]
    return [slice(*pair) for pair in itertools.pairwise(edges)]


def within(score: Tensor, is_id: Tensor) -> float:
    return 100 * summary(score[is_id], score[~is_id])["auroc"]


def held(arguments: argparse.Namespace) -> Iterator[tuple[Row, Job]]:
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for space in SPACES:
            for ood in HELD:
                key = {"part": "held", "suite": space, "set": ood, "seed": seed}
                yield key, functools.partial(held_out, arguments.folder, space, ood, seed)


HELD = ("near", "textures10", "intel_scenes", "flowers102", "cifar10", "mnist")
SPACES = {  # known names, and what the negatives are; near unknowns are other ImageNet classes, never a negative
    "50 of 1000, ImageNet negatives": (50, "imagenet"),
    "150 of 1000, ImageNet negatives": (150, "imagenet"),
    "100 of 1000, surrogate negatives": (100, "surrogate"),
    "300 of 1000, 253 other negatives": (300, "other"),
}
MOST = 1500  # images of an unknown set


def held_out(folder: str, space: str, ood: str, seed: int) -> Row:
    """Return what a label space drawn by `seed` gives in every order, and the better frozen baseline."""
    labels, pool = drawn(folder, space, ood, seed)
    frozen = [evaluate(detectors.make(name, labels), pool) for name in FROZEN]
    row = {
        "best_frozen": 100 * max(report.metrics["auroc"] for report in frozen),
        "best_fpr": 100 * min(report.metrics["fpr95_id"] for report in frozen),
        "evidence": 100 * evaluate(PooledEvidence(labels, share=0.0), pool).metrics["auroc"],
    }
    for order in ORDERS:
        report = evaluate(PooledEvidence(labels), pool.ordered(order, seed))
        row |= {f"{name}_{order}": 100 * report.metrics[name] for name in ("auroc", "fpr95_id", "accuracy")}
        row["accuracy_frozen"] = 100 * report.metrics["accuracy_frozen"]
    return row


def drawn(folder: str, space: str, ood: str, seed: int) -> tuple[LabelSpace, Trial]:
    """Return random ImageNet classes as known names, with their images and those of an unknown set."""
    count, kind = SPACES[space]
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(1000, generator=generator)
    text, other, surrogate = (features(folder, f"text-{name}") for name in ("imagenet1k", "other-names", NOT_CLIP))
    far = {
        "imagenet": torch.cat([text.z[order[400:]], other.z]),
        "surrogate": surrogate.z[torch.randperm(len(surrogate.z), generator=generator)[:2000]],
        "other": other.z,
    }[kind]
    labels = LabelSpace(
        tuple(f"known {i}" for i in range(count)),
        tuple(f"far {i}" for i in range(len(far))),
        text.z[order[:count]],
        far,
    )
    images = features(folder, "images-imagenet_val5")
    place = torch.full((1000,), -1)
    place[order[:count]] = torch.arange(count)
    known = place[images.true_labels] >= 0
    near = torch.isin(images.true_labels, order[300:400])
    unknown = images.z[near] if ood == "near" else features(folder, f"images-{ood}").z
    unknown = unknown[torch.randperm(len(unknown), generator=generator)[:MOST]]
    label = torch.cat([place[images.true_labels[known]], torch.full((len(unknown),), -1)])
    z = torch.cat([images.z[known], unknown])
    return labels, Trial(z, label, (label < 0).long(), ("known", ood))


NOT_CLIP = "surrogate-negatives"


@functools.cache
def features(folder: str, name: str) -> Features:
    return load_features(Path(folder) / f"{name}.safetensors", unit=False)


def show_held(rows: list[Row]) -> None:
    orders = " | ".join(ORDERS)
    print(f"| label space | set | best frozen | {orders} | lowest difference | FPR95 best frozen | shuffled |")
    print(f"|{'---|' * 9}")
    for (space, ood), group in grouped(rows, "suite", "set").items():
        low = min(row[f"auroc_{order}"] - row["best_frozen"] for row in group for order in ORDERS)
        mine = " | ".join(f"{mean(group, f'auroc_{order}'):.1f}" for order in ORDERS)
        fpr = f"{mean(group, 'best_fpr'):.1f} | {mean(group, 'fpr95_id_shuffled'):.1f}"
        print(f"| {space} | {ood} | {mean(group, 'best_frozen'):.1f} | {mine} | {low:+.1f} | {fpr} |")
    for order in ORDERS:
        off = [row[f"auroc_{order}"] - row["best_frozen"] for row in rows]
        below = sum(x < -0.5 for x in off)
        print(f"\n{order}: {min(off):+.1f} to {max(off):+.1f}, mean {statistics.fmean(off):+.2f}; ", end="")
        print(f"{below} of {len(off)} more than half a point below the best frozen")
    lost = min(row[f"accuracy_{order}"] - row["accuracy_frozen"] for row in rows for order in ORDERS)
    print(f"\nID accuracy: lowest difference to frozen text {lost:+.1f}")


class Ridge(PooledEvidence):
    """The default with another prior precision."""

    factor = 1.0

    @property
    def ridge(self) -> float:
        return self.factor * super().ridge


class LooseRidge(Ridge):
    factor = 1 / 8


class TightRidge(Ridge):
    factor = 4.0


class NoLean(PooledEvidence):
    lean = 0.0  # type: ignore[assignment]


class WholeLean(PooledEvidence):
    lean = 1.0  # type: ignore[assignment]


class AlwaysBelieved(PooledEvidence):
    """The pool has its half from the start, earned or not."""

    def _say(self, record: module.Record) -> module.Say:
        say = super()._say(record)
        return say._replace(slopes=torch.ones_like(say.slopes), whole=self.share * torch.ones_like(say.whole))


class OneGroup(PooledEvidence):
    """Two groups earn the pool nothing more."""

    def _say(self, record: module.Record) -> module.Say:
        say = super()._say(record)
        return say._replace(whole=self.share * record.seen / (record.seen + self.ridge))


class MayBlur(PooledEvidence):
    """Pooling may part the stream less clearly than it was."""

    def _unblurred(self, before: Tensor, after: Tensor) -> Tensor:
        return torch.ones_like(before)


class NoLevel(PooledEvidence):
    """A sample is drawn to its likes only, not to the level of the stream."""

    def _combined(
        self, own: Tensor, even: Tensor, predicted: Tensor, leverage: Tensor, is_open: Tensor, say: module.Say
    ) -> tuple[Tensor, Tensor]:
        return own + is_open * say.whole * say.slopes * (predicted - own) / (1 + leverage), even


def without(part: str) -> Callable[..., module.Evidence]:
    """Return the frozen evidence less one of its three parts."""

    def evidence(text: Any, lean: float) -> module.Evidence:
        whole, contrast = FULL(text, lean), text.known.amax(1) - text.known.mean(1)
        parts = {
            "trust": lambda: neglabel(text) - lean * whole.spread.shift,
            "contrast": lambda: contrast,
            "surprise": lambda: module.surprise(contrast, whole.spread, text.known.shape[1]) / 2,
        }
        return whole._replace(known=whole.known - parts[part]().double())

    return evidence


FULL = module.evidence
Variant = tuple[Callable[[LabelSpace], PooledEvidence], Callable[..., module.Evidence]]
VARIANTS: dict[str, Variant] = {
    "default": (PooledEvidence, FULL),
    "share 0: frozen evidence": (functools.partial(PooledEvidence, share=0.0), FULL),
    "lean 0: banks as they are": (NoLean, FULL),
    "lean 1: banks centred": (WholeLean, FULL),
    **{f"evidence without {part}": (PooledEvidence, without(part)) for part in ("trust", "contrast", "surprise")},
    "pool always believed, half": (AlwaysBelieved, FULL),
    "two groups earn nothing": (OneGroup, FULL),
    "pooling may blur": (MayBlur, FULL),
    "no level": (NoLevel, FULL),
    "no guard": (functools.partial(PooledEvidence, reach=1e6), FULL),
    "ridge / 8": (LooseRidge, FULL),
    "ridge x 4": (TightRidge, FULL),
    "balance 0: plain names": (functools.partial(PooledEvidence, balance=0.0), FULL),
}


def ablation(arguments: argparse.Namespace) -> Iterator[tuple[Row, Job]]:
    for name, ood, load in cells(arguments):
        for seed in range(arguments.seeds):
            for variant in arguments.variants or VARIANTS:
                key = {"part": "ablation", "suite": name, "set": ood, "seed": seed, "variant": variant}
                yield key, functools.partial(ablated, load, ood, seed, variant)


def ablated(load: Callable[[], suites.Suite], ood: str, seed: int, variant: str) -> Row:
    """Return AUROC of every order, FPR95 and accuracy shuffled, and AUROC of score() after an ID-only half."""
    build, evidence = VARIANTS[variant]
    labels, row = load().labels, {}
    with mock.patch.object(module, "evidence", evidence):
        for order in ORDERS:
            report = evaluate(build(labels), load().against(ood).ordered(order, seed))
            row |= {f"{name}_{order}": 100 * report.metrics[name] for name in ("auroc", "fpr95_id", "accuracy")}
        trial = load().against(ood).ordered("shuffled", seed)
        known, unknown = trial.is_id.nonzero().squeeze(1), (~trial.is_id).nonzero().squeeze(1)
        detector, half = build(labels), len(known) // 2
        _, state = detector.observe(detector.start(), trial.z[known[:half]])
        row["after_id"] = ranked(detector, state, trial, [known[half:], unknown[len(unknown) // 2 :]])
    return row


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def show_sets(rows: list[Row]) -> None:
    by = grouped(rows, "suite", "set", "method", "order")
    gaps: dict[str, list[tuple[float, ...]]] = {"auroc": [], "fpr95_id": []}
    beside = [method for method in ("online", "oracle") if any(row["method"] == method for row in rows)]
    titles = [
        "set",
        "MCM",
        "NegLabel",
        *beside,
        "shuffled",
        "ID first",
        "OOD first",
        "worst - best frozen",
        "gap closed",
    ]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for name, ood in {(row["suite"], row["set"]): None for row in rows}:
        cell = functools.partial(pick, by, name, ood)
        mine = [cell("default", order) for order in ORDERS]
        best = {m: pick_best(cell, m) for m in gaps}
        closed = []
        for metric, gap in gaps.items() if "oracle" in beside else ():
            up = 1 if metric == "auroc" else -1
            gap.append(tuple(up * (mean(to, metric) - best[metric]) for to in (mine[0], cell("oracle", "shuffled"))))
            closed.append(share_of(gap[-1:]))
        columns = [both(cell(m, "shuffled")) for m in (*FROZEN, *beside)]
        worst = min(row["auroc"] for group in mine for row in group) - best["auroc"]
        lowest = min(mean(group, "auroc") for group in mine) - best["auroc"]
        off = f"{lowest:+.1f} (any seed {worst:+.1f})"
        print(f"| {' | '.join([f'{name} {ood}', *columns, *map(both, mine), off, ' / '.join(closed)])} |")
    for metric, gap in gaps.items():
        print(f"\ngap closed, {metric}: {share_of(gap)} of the sum of gaps")
    show_verdicts([row for row in rows if row["method"] == "default"])
    print("\n| set | ID accuracy, frozen | shuffled | ID first | OOD first | lowest seed - frozen |")
    print("|---|---|---|---|---|---|")
    for (name, ood), group in grouped((r for r in rows if r["method"] == "default"), "suite", "set").items():
        orders = grouped(group, "order")
        low = min(row["accuracy"] - row["accuracy_frozen"] for row in group)
        shown = " | ".join(f"{mean(orders[order,], 'accuracy'):.1f}" for order in ORDERS)
        print(f"| {name} {ood} | {mean(group, 'accuracy_frozen'):.1f} | {shown} | {low:+.1f} |")


def share_of(gaps: Sequence[tuple[float, ...]]) -> str:
    """Return how much of the way from the best frozen baseline to the oracle was gone, of sets with a way to go."""
    ways = [(gone, way) for gone, way in gaps if way >= 1]
    return f"{100 * sum(gone for gone, _ in ways) / sum(way for _, way in ways):.0f} %" if ways else "-"


def pick(by: dict[tuple[Any, ...], list[Row]], name: str, ood: str, method: str, order: str) -> list[Row]:
    return by[name, ood, method, order]


def pick_best(cell: Callable[[str, str], list[Row]], metric: str) -> float:
    values = [mean(cell(method, "shuffled"), metric) for method in FROZEN]
    return max(values) if metric == "auroc" else min(values)


def both(rows: list[Row]) -> str:
    return f"{mean(rows, 'auroc'):.1f} / {mean(rows, 'fpr95_id'):.1f}"


def show_verdicts(rows: list[Row]) -> None:
    print("\nRealised ID recall (OOD accepted), mean over seeds; [lowest, highest] recall of a seed")
    print("| set | order | at even | wanted 95 % | wanted 90 % | wanted 80 % |\n|---|---|---|---|---|---|")
    for (name, ood, order), group in grouped(rows, "suite", "set", "order").items():
        columns = " | ".join(realised(group, at) for at in ("even", "at95", "at90", "at80"))
        print(f"| {name} {ood} | {order} | {columns} |")
    for recall in RECALLS:
        off = [row[f"at{100 * recall:g}_id"] - 100 * recall for row in rows]
        below, above = sum(x < -3 for x in off), sum(x > 3 for x in off)
        print(f"\nwanted {100 * recall:g} %: off by {min(off):+.1f} to {max(off):+.1f} points over {len(off)} streams;")
        print(f"{below} more than three points under, {above} over")


def realised(rows: list[Row], at: str) -> str:
    values = [row[f"{at}_id"] for row in rows]
    return f"{mean(rows, f'{at}_id'):.1f} ({mean(rows, f'{at}_ood'):.1f}) [{min(values):.1f}, {max(values):.1f}]"


def show_alone(rows: list[Row]) -> None:
    titles: tuple[str, ...]
    titles = (
        "set",
        "two streams",
        "ID only, then mixed",
        "OOD only, then mixed",
        "score() after ID",
        "after OOD",
    )
    titles += ("frozen evidence", "best frozen", "recall at 95", "OOD accepted")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    names = ("two", "after_id_then", "after_ood_then", "after_id", "after_ood", "evidence", "best_frozen", *REALISED)
    for (name, ood), group in grouped(rows, "suite", "set").items():
        print(f"| {name} {ood} | {' | '.join(f'{mean(group, column):.1f}' for column in names)} |")


REALISED = ("at95_id", "at95_ood")


def show_subsets(rows: list[Row]) -> None:
    print("| set | order | AUROC | best frozen | lowest difference of a seed |\n|---|---|---|---|---|")
    for (name, ood, order), group in grouped(rows, "suite", "set", "order").items():
        low = min(row["auroc"] - row["best_frozen"] for row in group)
        print(
            f"| {name} {ood} | {order} | {mean(group, 'auroc'):.1f} | {mean(group, 'best_frozen'):.1f} | {low:+.1f} |"
        )
    show_verdicts(rows)


def show_shift(rows: list[Row]) -> None:
    print("| suite | going on | reset before each set | cost |\n|---|---|---|---|")
    for (name,), group in grouped(rows, "suite").items():
        going_on, reset = mean(group, "going_on"), mean(group, "reset")
        print(f"| {name} | {going_on:.2f} | {reset:.2f} | {reset - going_on:+.2f} |")


def show_ablation(rows: list[Row]) -> None:
    print("| variant | shuffled | FPR95 shuffled | ID first | OOD first | score() after ID only | ID accuracy |")
    print("|---|---|---|---|---|---|---|")
    base = {(r["suite"], r["set"], r["seed"]): r for r in rows if r["variant"] == "default"}
    for (variant,), group in grouped(rows, "variant").items():
        columns = []
        for name in ("auroc_shuffled", "fpr95_id_shuffled", "auroc_id_first", "auroc_ood_first", "after_id"):
            paired = grouped(
                ({**r, "d": r[name] - base[r["suite"], r["set"], r["seed"]][name]} for r in group), "suite", "set"
            )
            by_set = {key: mean(of_set, "d") for key, of_set in paired.items()}
            worst = max(by_set, key=by_set.__getitem__) if "fpr" in name else min(by_set, key=by_set.__getitem__)
            note = "" if variant == "default" else f" ({by_set[worst]:+.1f} {' '.join(worst)})"
            columns.append(f"{mean(group, name):.1f}{note}")
        print(f"| {variant} | {' | '.join(columns)} | {mean(group, 'accuracy_shuffled'):.1f} |")


def speed(folder: str) -> None:
    """Print seconds for 2,048 samples, median of five turns taken in alternation."""
    print("| K | L | Algorithm 1, blocked | default | ratio |\n|---|---|---|---|---|")
    for name in ("imagenet200", "imagenet1k-surrogate"):
        labels = suite(name, folder).labels
        z = suite(name, folder).against("textures10").ordered("shuffled", 0).z[:2048]
        took: dict[type, list[float]] = {Online: [], PooledEvidence: []}
        for _ in range(5):
            for kind, seconds in took.items():
                detector = kind(labels)
                start = time.process_time()
                detector.observe(detector.start(), z)
                seconds.append(time.process_time() - start)
        one, two = (statistics.median(seconds) for seconds in took.values())
        print(f"| {len(labels.names)} | {len(labels.negatives)} | {one:.2f} s | {two:.2f} s | {two / one:.2f} |")


PARTS: dict[str, tuple[Callable[..., Iterator[tuple[Row, Job]]], Callable[[list[Row]], None]]] = {
    "sets": (sets, show_sets),
    "alone": (alone, show_alone),
    "subsets": (subsets, show_subsets),
    "held": (held, show_held),
    "shift": (shift, show_shift),
    "ablation": (ablation, show_ablation),
}

if __name__ == "__main__":
    main()
