"""Which runs a benchmark of a suite consists of, listed before anything is computed."""

import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import permutations
from typing import Any

from unseen import arrival, detectors
from unseen.detectors import Detector, Online, posthoc
from unseen.detectors.frozen import Frozen
from unseen.errors import SettingError
from unseen.labels import LabelSpace
from unseen.suites import Suite

LABEL_FREE, NEEDS_ID_IMAGES, ROUTED_BY_TRUTH = "label-free", "id-images", "oracle"
KINDS = {  # what a run gets to see besides features
    LABEL_FREE: "label-free",
    NEEDS_ID_IMAGES: "needs ID images: fitted on held-out images of the known classes",
    ROUTED_BY_TRUTH: "upper bound: routes by the truth",
}
ORACLE = "oracle-online"
ANY_ORDER = "any"  # the order of a method that reads every sample by itself
SHIFTS = ("temporal", "drift")  # orders of one stream in which one unknown set follows another
COMPLETE_ORDERS = (  # orders in which everyone arrives
    *("shuffled", "id_first", "ood_first", "id_then_mixed", "ood_then_mixed", "bursts"),
    *SHIFTS,
    "temporal-all",
)
PREFERRED = ("pooled", "online", "online-id", "adaneg", "tanl", "neglabel", "csp", "dnm", "eoe", "mcm", ORACLE)


def default_detectors() -> tuple[str, ...]:
    """Return the training-free detectors that are registered, and the upper bound."""
    return tuple(name for name in PREFERRED if name in detectors.REGISTRY or name == ORACLE)


DETECTORS = default_detectors()


@dataclass(frozen=True)
class Run:
    """One stream through one detector: an unknown set or several, an order, a seed, a detector and its settings."""

    sets: tuple[str, ...]  # several only when they follow one another in one stream, in this order
    order: str
    seed: int
    detector: str
    settings: tuple[tuple[str, Any], ...] = ()  # what differs from the detector's defaults

    @property
    def kind(self) -> str:
        """Return what the run gets to see."""
        if self.detector == ORACLE:
            return ROUTED_BY_TRUTH
        return NEEDS_ID_IMAGES if self.detector in posthoc.REGISTRY else LABEL_FREE

    def build(self, labels: LabelSpace) -> Detector[Any]:
        """Return the detector; one that needs ID images comes unfitted."""
        return detector_class(self.detector)(labels, **dict(self.settings))


def detector_class(name: str) -> type[Detector[Any]]:
    """Return the class behind a registered name, or behind `module:Class` for one of your own."""
    if name == ORACLE:
        return Online
    if name in posthoc.REGISTRY:
        return posthoc.REGISTRY[name]
    if ":" in name:
        return _import_class(name)
    if name not in detectors.REGISTRY:
        known = ", ".join([*sorted(detectors.REGISTRY), *posthoc.REGISTRY, ORACLE])
        raise SettingError(f"expected detectors out of {known} or module:Class, got {name!r}; check the spelling")
    return detectors.REGISTRY[name]


def list_runs(suite: Suite, *, names: Sequence[str], orders: Sequence[str], seeds: int) -> list[Run]:
    """Return every run of a suite, refusing names nobody registered before anything is computed.

    A method that never learns reads every sample by itself. Where everyone arrives, order and seed cannot change its
    scores, so that it runs once and its row says `any` for the order instead of pretending to ten measurements.
    """
    for kind in orders:
        if kind not in arrival.ORDERS and kind not in COMPLETE_ORDERS:
            raise SettingError(f"expected orders out of {', '.join(arrival.ORDERS)}, temporal-all, got {kind!r}")
    runs = [
        _order_free(Run(sets, "temporal" if kind == "temporal-all" else kind, seed, name))
        for kind in orders
        for sets in _sets_of_streams(suite, kind)
        for seed in range(seeds)
        for name in map(detectors.canonical_name, names)
    ]
    return list(dict.fromkeys(run for part in runs for run in part))


def with_sweeps(runs: Sequence[Run], sweeps: Sequence[str]) -> list[Run]:
    """Return the runs and, for each value of a sweep `name=value,value,...`, those whose detector has the setting."""
    result = list(runs)
    for sweep in sweeps:
        name, values = _parse_sweep(sweep)
        having = [run for run in runs if name in {field.name for field in fields(detector_class(run.detector))}]
        if not having:
            chosen = ", ".join(dict.fromkeys(run.detector for run in runs))
            raise SettingError(f"expected a setting of one of {chosen}, got {name!r}; see the detector's class")
        result += [replace(run, settings=((name, value),)) for value in values for run in having]
    return list(dict.fromkeys(result))


def _order_free(run: Run) -> Iterator[Run]:
    """Yield the run, or the order-free runs that say all it could say."""
    if run.order in COMPLETE_ORDERS and issubclass(detector_class(run.detector), Frozen):
        for name in run.sets:
            yield Run((name,), ANY_ORDER, 0, run.detector, run.settings)
    else:
        yield run


def _sets_of_streams(suite: Suite, order: str) -> list[tuple[str, ...]]:
    """Return which sets make one stream: each alone, or all of them one after another in several orders."""
    if order == "temporal-all":
        return list(permutations(suite.sets))
    if order in SHIFTS:  # the rotations, as the paper has them
        return [suite.sets[start:] + suite.sets[:start] for start in range(len(suite.sets))]
    return [(name,) for name in suite.sets]


def _parse_sweep(sweep: str) -> tuple[str, list[float]]:
    name, _, values = sweep.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError as error:
        raise SettingError(f"expected a sweep like kappa=0.01,0.05, got {sweep!r}; write numbers") from error


def _import_class(name: str) -> type[Detector[Any]]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"expected a detector class at {name!r}, got {error}; check that it imports") from error
    if not (inspect.isclass(found) and issubclass(found, Detector)):
        raise SettingError(f"expected a subclass of unseen.detectors.Detector at {name!r}, got {found!r}")
    return found
