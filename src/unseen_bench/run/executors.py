"""Runs: streams through a detector, checked against the rules, judged, and returned as rows and sample values.

They run in processes of this machine or on a GPU; the rows are the same, in the same order.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from unseen.detectors import Detector, DetectorOutput
from unseen.errors import SettingError
from unseen.images.sources import usable_cores
from unseen.keyed import one_thread
from unseen.session import Session
from unseen_bench.checks import (
    check_blocking,
    check_causal,
    check_length_free,
    observe_in_parts,
    random_vectors,
    require_same,
    tolerance_of,
)
from unseen_bench.evaluate import Evaluation, evaluate_many, over_time, ranked
from unseen_bench.methods.fewshot import FewShot, taught
from unseen_bench.methods.posthoc import PostHoc, fit
from unseen_bench.oracles import run_oracle
from unseen_bench.run.results import ResultFolder, Row, finite, map_in_processes, resume, row_key
from unseen_bench.run.runs import ANY_ORDER, LABEL_FREE, ROUTED_BY_TRUTH, SHIFT, Run
from unseen_bench.run.version import code_version
from unseen_bench.suites import Source, Suite
from unseen_bench.suites.loading import reload
from unseen_bench.trial import Trial

CPU = "cpu"


@dataclass(frozen=True)
class RuleNumbers:
    """On how much of a stream the rules are tried."""

    checked: int = 96  # samples at the start of every stream on which the rules are tried
    divided: int = 8  # of them are also observed one by one
    calls: int = 32  # into which the whole stream of the first seed is cut
    rounding: float = 1e-13  # above what another shape of a matrix product changes in float64
    points: int = 20  # of the curves over a stream
    little: int = 20_000  # samples of all runs: fewer are done before another process has imported torch


NUMBERS = RuleNumbers()

OF_VERDICTS = ("kept", "rejected", "balanced", "ece", "kept_first_200", "rejected_first_200")  # follow the threshold


class RunResult(NamedTuple):
    """A row for the table; `margin` and `score` of every sample in the suite's own order, nan unless it came once."""

    row: Row
    samples: dict[str, Float[Tensor, " n"]]


def execute(suite: Suite, run: Run, *, device: str = CPU) -> RunResult:
    """What ran, on what, and every metric."""
    return execute_many(suite, [run], device=device)[0]


def execute_many(suite: Suite, runs: Sequence[Run], *, device: str) -> list[RunResult]:
    """The results of runs that differ only in the arrival order, from one call of the detector."""
    pool, detector = prepare(suite, runs[0], device)
    orders = [arrival_order(pool, run) for run in runs]
    is_first = [not run.seed and run.sets[0] == suite.sets[0] for run in runs]
    for run, order, whole in zip(runs, orders, is_first, strict=True):
        if whole:
            assert_rules(detector, pool.z[order[: NUMBERS.checked]], run)
    if runs[0].kind == ROUTED_BY_TRUTH:
        evaluations = [run_oracle(runs[0].method.name, detector, pool[order], seed=runs[0].seed) for order in orders]
    else:
        evaluations = evaluate_many(Session(detector) if runs[0].is_judged else ranked(detector), pool, orders)
        for run, evaluation, whole in zip(runs, evaluations, is_first, strict=True):
            assert_own_stream(detector, evaluation, run, whole=whole)
    return [
        to_result(suite, run, pool, order, evaluation, device=device)
        for run, order, evaluation in zip(runs, orders, evaluations, strict=True)
    ]


def to_result(
    suite: Suite, run: Run, pool: Trial, order: Int[Tensor, " T"], evaluation: Evaluation, *, device: str
) -> RunResult:
    """An evaluation as a row, and the values of its samples in the suite's own order."""
    trial, output, has_course = evaluation.trial, evaluation.output, run.order != ANY_ORDER and not run.settings
    course = over_time(evaluation, points=NUMBERS.points) if has_course else []
    row = {
        **run_identity(suite, run, device=device),
        "samples": len(trial.z),
        "known": int(trial.is_id.sum()),
        "unknown": {
            name: int((pool.source == place).sum()) for place, name in enumerate(pool.sources) if name in run.sets
        },
        "by_set": {name: _defined_metrics(run, metrics) for name, metrics in evaluation.by_source.items()},
        **_defined_metrics(run, evaluation.metrics),
        "over_time": [_defined_metrics(run, part) for part in course],
        **evaluation.cost._asdict(),
        "torch": torch.__version__,
    }
    columns = {"margin": output.margin, "score": output.score}
    return RunResult(row, {name: _in_suite_order(values, order, len(pool.z)) for name, values in columns.items()})


def run_identity(suite: Suite, run: Run, *, device: str = CPU) -> Row:
    """What makes a row this row and no other: rows that agree on it need not be computed again."""
    detector = run.build(suite)
    settings = detector.settings.items()
    return {
        "suite": suite.name,
        "sets": list(run.sets),
        "order": run.order,
        "seed": run.seed,
        "detector": run.detector,
        "kind": run.kind,
        "settings": {name: str(getattr(v, "__name__", v)) if callable(v) else v for name, v in settings},
        "varied": [name for name, _ in run.settings],
        "labels": detector.labels.fingerprint,
        "text": suite.text_of(run.method.space),
        "data": suite.fingerprint,
        "version": code_version(),
        **({} if device == CPU else {"device": device}),  # another device rounds otherwise
    }


def prepare(suite: Suite, run: Run, device: str = CPU) -> tuple[Trial, Detector[Any]]:
    """The samples of a run and its detector, fitted on known images that are then left out if it needs them."""
    detector = run.build(suite)
    if detector.parts:
        suite = suite.with_parts(detector.parts, detector.labels)
    trial, detector = suite.against(*run.sets), replace(detector, labels=detector.labels.to(device=device))
    if not isinstance(detector, (PostHoc, FewShot)):
        return trial, detector
    held_out, rest = trial.held_out()
    z, label = held_out.z.to(device), held_out.label.to(device)
    if isinstance(detector, PostHoc):
        return rest, fit(detector, z, label)
    return rest, taught(detector, z, label)


def arrival_order(pool: Trial, run: Run) -> Int[Tensor, " T"]:
    """The indices of the samples in the order in which they arrive."""
    if run.order == ANY_ORDER:  # not as the pool has them, known ones first: places would tell the truth
        return pool.arrival("shuffled", run.seed)
    options = {"sets": [pool.sources.index(name) for name in run.sets]} if run.order == SHIFT else {}
    return pool.arrival(run.order, run.seed, **options)


def assert_rules(detector: Detector[Any], z: Float[Tensor, "T d"], run: Run) -> None:
    """Refuse a detector that breaks a rule of the protocol on the start of this very stream, by the rule's name.

    The first seed of the first set of every order and setting stands for the others, which `assert_own_stream` tries.
    """
    exact, z = in_float64(detector, z[: NUMBERS.checked])
    rules = [
        ("causal", check_causal, z),
        ("length-free", check_length_free, z),
        ("blocking", check_blocking, z[: NUMBERS.divided]),
    ]
    if run.order == ANY_ORDER:
        rules.append(("order-free", _require_order_free, z))
    for rule, check, samples in rules:
        with _named_rule(run, rule):
            check(exact, samples)


def assert_own_stream(detector: Detector[Any], evaluation: Evaluation, run: Run, *, whole: bool) -> None:
    """Refuse a detector whose readings change when the same stream is divided into other calls, or is cut short.

    The first seed of the first set observes the `whole` stream again in calls of random lengths, the others the first
    samples without the rest. Learning may amplify rounding, so that readings which differ are computed again in
    float64, and count up to the sample from which rounding alone changes them.
    """
    z = evaluation.trial.z
    rule, sizes = (
        ("blocking", random_sizes(len(z), NUMBERS.calls)) if whole else ("length-free", [min(NUMBERS.checked, len(z))])
    )
    length, what = sum(sizes), f"{sum(sizes)} samples in {len(sizes)} of the stream's calls"
    with suppress(AssertionError):
        again, _ = observe_in_parts(detector, z[:length].to(detector.labels.id_anchors.device), sizes)
        require_same(_first(length, evaluation.output), again.cpu(), what)
        return
    exact, z = in_float64(detector, z)
    once, again = (observe_in_parts(exact, z[: sum(parts)], parts)[0] for parts in ([len(z)], sizes))
    length = min(length, max(NUMBERS.checked, stable_length(exact, z, once)))
    with _named_rule(run, rule):
        require_same(_first(length, once), _first(length, again), what)


def stable_length(detector: Detector[Any], z: Float[Tensor, "T d"], output: DetectorOutput) -> int:
    """How many samples are read before features moved by about their rounding give another reading."""
    moved = normalize(z + NUMBERS.rounding * random_vectors(z), dim=-1)
    apart = (detector.observe(detector.start(), moved)[0].score - output.score).abs()
    changed = (apart > tolerance_of(output.score)).nonzero()
    return int(changed[0]) if len(changed) else len(z)


def random_sizes(samples: int, calls: int) -> list[int]:
    """The lengths of calls into which a stream is cut at random places, the same ones every time."""
    places = torch.randperm(max(samples - 1, 0), generator=torch.Generator().manual_seed(samples))[: calls - 1] + 1
    ends = [0, *places.sort().values.tolist(), samples]
    return [end - start for start, end in pairwise(ends)]


def _require_order_free(detector: Detector[Any], z: Tensor) -> None:
    straight, turned = (detector.observe(detector.start(), part)[0] for part in (z, z.flip(0)))
    require_same(straight, DetectorOutput(*(part.flip(0) for part in turned)), "readings of samples in reverse order")


def in_float64(detector: Detector[Any], z: Tensor) -> tuple[Detector[Any], Tensor]:
    """A detector and features whose rounding cannot be taken for a broken rule; fitted ones stay as they are."""
    if isinstance(detector, (PostHoc, FewShot)):
        return detector, z.to(detector.labels.id_anchors.device)
    return replace(detector, labels=detector.labels.to(device=CPU, dtype=torch.float64)), z.cpu().double()


def _first(length: int, output: DetectorOutput) -> DetectorOutput:
    return DetectorOutput(*(part[:length] for part in output))


RULES = {  # each is what the protocol says of a label-free line
    "causal": "no score depends on a later sample",
    "length-free": "no score depends on how long the stream is",
    "blocking": "no score depends on how the stream is divided into calls, or on what comes later in its call",
    "order-free": "a method that never learns reads every sample by itself",
}


@contextmanager
def _named_rule(run: Run, rule: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise SettingError(
            f"expected a detector that keeps the rule {rule!r} ({RULES[rule]}), got {run.detector}: {error}; "
            "a benchmark of streams cannot rank it"
        ) from error


def _defined_metrics(run: Run, metrics: Mapping[str, float]) -> Row:
    """The metrics, None where undefined: among them those of verdicts that nobody asked for."""
    left_out = () if run.is_judged else OF_VERDICTS
    return finite({name: math.nan if name in left_out else value for name, value in metrics.items()})


def _in_suite_order(values: Tensor, order: Tensor, count: int) -> Float[Tensor, " n"]:
    """Values of arriving samples at the places that the samples have in the suite, nan if not exactly once."""
    result = torch.full((count,), math.nan)
    result[order] = values.float()
    result[torch.bincount(order, minlength=count) > 1] = math.nan
    return result


def run_all(
    suite: Suite,
    runs: Sequence[Run],
    results: ResultFolder | None = None,
    *,
    workers: int | None = None,
    device: str = CPU,
) -> Iterator[tuple[Run, Row]]:
    """Yield each run with its row, in the order of `runs`; what `results` holds is read, the rest computed and added.

    There are `workers` processes: if not given, as many as cores, and one for little work. On another device than the
    CPU one does all runs, and those that differ only in the arrival order together.
    """

    def compute(missing: list[int]) -> Iterator[Row]:
        chosen = [runs[position] for position in missing]
        is_little = len(suite.pool.z) * len(chosen) < NUMBERS.little
        count = min(workers or (1 if is_little else usable_cores()), len(chosen))
        found = on_device(suite, chosen, device) if device != CPU else in_processes(suite, chosen, count)
        for row, samples in found:
            if results:
                results.add(row, samples)
            yield row

    keys = [row_key(run_identity(suite, run, device=device)) for run in runs]
    return zip(runs, resume(keys, results.rows() if results else {}, compute), strict=True)


def in_processes(suite: Suite, runs: Sequence[Run], count: int) -> Iterator[RunResult]:
    """Yield the result of each run, from `count` processes that load the suite from its source.

    Every run has one torch thread, so that rounding, and with it every digit of a row but its seconds, is the same for
    any number of processes.
    """
    if count > 1:
        for row, arrays in map_in_processes(partial(_work, suite.source), runs, count):
            yield RunResult(row, {name: torch.from_numpy(values) for name, values in arrays.items()})
        return
    for run in runs:
        with one_thread():
            result = execute(suite, run)
        yield result


def on_device(suite: Suite, runs: Sequence[Run], device: str) -> Iterator[RunResult]:
    """Yield the result of each run; runs that differ only in the arrival order are one call of their detector."""
    groups: dict[tuple[Run, bool], list[Run]] = {}
    for run in runs:
        groups.setdefault((replace(run, order="", seed=0), run.is_judged), []).append(run)
    done: dict[Run, RunResult] = {}
    for run in runs:
        group = groups[replace(run, order="", seed=0), run.is_judged]
        if run not in done:
            together = group if run.kind == LABEL_FREE else [run]
            done.update(zip(together, execute_many(suite, together, device=device), strict=True))
        yield done.pop(run)


def _work(source: Source, run: Run) -> tuple[Row, dict[str, Any]]:
    """A result for another process: a tensor would travel as a handle to shared memory, an array as bytes."""
    row, samples = execute(_load_suite(source), run)
    return row, {name: values.numpy() for name, values in samples.items()}


@cache
def _load_suite(source: Source) -> Suite:
    torch.set_num_threads(1)
    return reload(source)
