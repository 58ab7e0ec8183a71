"""What a benchmark calls a method: a registered name or module:Class, then settings that are not the published ones.

`neglabel groups=1` is NegLabel with one group; `neglabel space=csp` is NegLabel's score over the label space of CSP.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from unseen import detectors
from unseen.detectors import Detector
from unseen.errors import SettingError
from unseen_bench.methods import fewshot, posthoc
from unseen_bench.oracles import ORACLES
from unseen_bench.suites import Suite

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
