"""Which runs a benchmark of a suite consists of, listed before anything is computed, and what it calls a method.

A method is a registered name or module:Class, then settings that are not the published ones: `neglabel groups=1` is
NegLabel with one group, `neglabel space=csp` is NegLabel's score over the label space of CSP.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

from unseen import detectors
from unseen.detectors import Detector
from unseen.detectors.base import Frozen
from unseen.errors import SettingError
from unseen_bench import trial as arrival
from unseen_bench.methods import fewshot, posthoc
from unseen_bench.methods.fewshot import FewShot
from unseen_bench.methods.posthoc import PostHoc
from unseen_bench.oracles import ORACLES, PLAIN
from unseen_bench.suites import Suite

LABEL_FREE, NEEDS_ID_IMAGES, ROUTED_BY_TRUTH = "label-free", "id-images", "oracle"
KINDS = {  # what a run gets to see besides features
    LABEL_FREE: "label-free",
    NEEDS_ID_IMAGES: "needs ID images: fitted on held-out images of the known classes",
    ROUTED_BY_TRUTH: "upper bound: routes by the truth (NAME-permuted: by one drawn at random, chance is 50)",
}
ANY_ORDER = "any"  # the order of a method that reads every sample by itself
SHIFT = "temporal"  # the order of one stream in which one unknown set follows another
COMPLETE_ORDERS = (  # orders in which everyone arrives
    *("shuffled", "id_first", "ood_first", "id_then_mixed", "ood_then_mixed", "bursts"),
    *(SHIFT, "temporal-all"),
)
PREFERRED = (
    "pooled",
    "online",
    "online-id",
    "adaneg",
    "tanl",
    "clipscope",
    "neglabel",
    "csp",
    "dnm",
    "eoe",
    "mcm",
    *PLAIN,
)


def default_detectors() -> tuple[str, ...]:
    """The training-free detectors that are registered, and the upper bounds."""
    return tuple(name for name in PREFERRED if name in detectors.names() or name in ORACLES)


DETECTORS = default_detectors()


SPACE = "space"  # names the method whose label space is read; not a setting of a detector
FITTED: dict[str, type[Detector[Any]]] = {**posthoc.REGISTRY, **fewshot.REGISTRY}  # on ID images, before a stream


@dataclass(frozen=True)
class Method:
    """A detector's name, the label space it reads, and its own settings."""

    name: str
    space: str
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    @cache
    def parse(cls, text: str) -> Method:
        """The method that `name key=value ...` describes; refuse what is not registered."""
        name, *pairs = text.split()
        name = detectors.canonical_name(name)
        options = dict(pair.partition("=")[::2] for pair in pairs)
        space, kind = options.pop(SPACE, name), detector_class(name)
        return cls(name, space, tuple((key, parse_setting(kind, key, value)) for key, value in options.items()))

    @property
    def kind(self) -> type[Detector[Any]]:
        """Its class."""
        return detector_class(self.name)

    def build(self, suite: Suite, **settings: Any) -> Detector[Any]:
        """The detector over its label space of a suite; one that needs ID images comes unfitted.

        Settings that its authors published for this suite stand where none are given.
        """
        options = dict(suite.published_settings(self.name)) | dict(self.settings) | settings
        if self.name == "tanl" and suite.noise is not None:
            options = {"noise": suite.noise()} | options
        return self.kind(suite.labels_of(self.space), **options)


def detector_class(name: str) -> type[Detector[Any]]:
    """The class behind a registered name, or behind `module:Class` or `file.py:Class` for one of your own."""
    if name in ORACLES:
        return ORACLES[name].kind
    if name in FITTED:
        return FITTED[name]
    if ":" in name:
        return _import_class(name)
    if name not in detectors.names():
        known = ", ".join([*sorted(detectors.names()), *FITTED, *ORACLES])
        raise SettingError(f"expected detectors out of {known} or module:Class, got {name!r}; check the spelling")
    return detectors.find(name)


def parse_setting(kind: type[Detector[Any]], name: str, text: str) -> Any:
    """The value of a setting written as text, in the type that the detector's own default has."""
    defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    if name not in defaults:
        raise SettingError(f"expected a setting of {kind.name} out of {', '.join(defaults)}, got {name!r}")
    try:
        return type(defaults[name])(text)
    except (TypeError, ValueError) as error:
        wanted = type(defaults[name]).__name__
        raise SettingError(f"expected {name} of {kind.name} as {wanted}, got {text!r}; write a number") from error


@cache
def _import_class(name: str) -> type[Detector[Any]]:
    module, _, attribute = name.rpartition(":")
    try:
        found = getattr(
            _import_file(Path(module)) if module.endswith(".py") else importlib.import_module(module), attribute
        )
    except (ImportError, AttributeError, OSError) as error:
        raise SettingError(
            f"expected a detector class at {name!r}, got {error}; check that it can be imported"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, Detector)):
        raise SettingError(f"expected a subclass of unseen.detectors.Detector at {name!r}, got {found!r}")
    return found


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file at {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Run:
    """One stream through one detector: an unknown set or several, an order, a seed, a detector and its settings."""

    sets: tuple[str, ...]  # several only when they follow one another in one stream, in this order
    order: str
    seed: int
    detector: str
    settings: tuple[tuple[str, Any], ...] = ()  # what a sweep varies

    @property
    def kind(self) -> str:
        """What the run gets to see."""
        if self.method.name in ORACLES:
            return ROUTED_BY_TRUTH
        return NEEDS_ID_IMAGES if issubclass(self.method.kind, (PostHoc, FewShot)) else LABEL_FREE

    @property
    def is_judged(self) -> bool:
        """Whether its verdicts count: not those of a control, of a sweep, or of what has no order to learn in."""
        return self.kind != ROUTED_BY_TRUTH and not self.settings and self.order != ANY_ORDER

    @property
    def method(self) -> Method:
        """The method that `detector` names, with the settings that are part of it."""
        return Method.parse(self.detector)

    def build(self, suite: Suite) -> Detector[Any]:
        """The detector; one that needs ID images comes unfitted."""
        return self.method.build(suite, **dict(self.settings))


def list_runs(suite: Suite, *, names: Sequence[str], orders: Sequence[str], seeds: int) -> list[Run]:
    """Every run of a suite, refusing names nobody registered before anything is computed.

    A method that never learns reads every sample by itself. Where everyone arrives, order and seed cannot change its
    scores, so that it runs once and its row says `any` for the order instead of pretending to ten measurements.
    An oracle is followed by its control, the first stream of each order with a truth drawn at random.
    """
    for kind in orders:
        if kind not in arrival.ORDERS and kind not in COMPLETE_ORDERS:
            raise SettingError(f"expected orders out of {', '.join(arrival.ORDERS)}, temporal-all, got {kind!r}")
    runs = [
        _order_free(Run(sets, "temporal" if kind == "temporal-all" else kind, seed, name))
        for kind in orders
        for sets in _sets_of_streams(suite, kind)
        for seed in range(seeds)
        for name in _with_controls(names, is_first=not seed)
    ]
    return list(dict.fromkeys(run for part in runs for run in part))


def with_sweeps(runs: Sequence[Run], sweeps: Sequence[str]) -> list[Run]:
    """The runs and, for each value of a sweep `name=value,value,...`, those whose detector has the setting."""
    result = list(runs)
    for sweep in sweeps:
        name, values = _parse_sweep(sweep)
        having = [run for run in runs if name in {field.name for field in fields(run.method.kind)}]
        if not having:
            chosen = ", ".join(dict.fromkeys(run.detector for run in runs))
            raise SettingError(f"expected a setting of one of {chosen}, got {name!r}; see the detector's class")
        result += [
            replace(run, settings=((name, parse_setting(run.method.kind, name, value)),))
            for value in values
            for run in having
        ]
    return list(dict.fromkeys(result))


def _with_controls(names: Sequence[str], *, is_first: bool) -> Iterator[str]:
    """Yield each method as rows call it, its registered name and then its settings; an oracle's control after it."""
    for text in names:
        name, *settings = text.split()
        name = detectors.canonical_name(name)
        yield " ".join([name, *settings])
        if is_first and name in PLAIN:
            yield " ".join([f"{name}-permuted", *settings])


def _order_free(run: Run) -> Iterator[Run]:
    """Yield the run; of a method that never learns, a run without order for each set, whose scores are the same."""
    if run.order in COMPLETE_ORDERS and issubclass(run.method.kind, Frozen):
        for name in run.sets:
            yield Run((name,), ANY_ORDER, 0, run.detector, run.settings)
    else:
        yield run


def _sets_of_streams(suite: Suite, order: str) -> list[tuple[str, ...]]:
    """Which sets make one stream: each alone, or all of them one after another in several orders."""
    if order == "temporal-all":
        return list(permutations(suite.sets))
    if order == SHIFT:  # the rotations, as the paper has them
        return [suite.sets[start:] + suite.sets[:start] for start in range(len(suite.sets))]
    return [(name,) for name in suite.sets]


def _parse_sweep(sweep: str) -> tuple[str, list[str]]:
    name, _, values = sweep.partition("=")
    try:
        return name, [value for value in values.split(",") if math.isfinite(float(value))]
    except ValueError as error:
        raise SettingError(f"expected a sweep like kappa=0.01,0.05, got {sweep!r}; write numbers") from error
