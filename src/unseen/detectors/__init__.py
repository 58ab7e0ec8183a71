"""One file per method, one protocol (base.Detector), and a table of names whose classes are imported when asked for.

A package of your own adds a detector by an entry point, as `unseen_bench` adds the methods that the paper compares:

    [project.entry-points."unseen.detectors"]
    mine = "my_package.my_module:Mine"
"""

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from unseen.errors import SettingError

if TYPE_CHECKING:
    from unseen.detectors.base import Detector, DetectorOutput
    from unseen.detectors.mcm import MCM
    from unseen.detectors.neglabel import NegLabel
    from unseen.detectors.online import Framework, Online, OnlineID
    from unseen.detectors.pooled import PooledEvidence
    from unseen.labels import LabelSpace

DETECTORS = {
    "pooled": "unseen.detectors.pooled:PooledEvidence",
    "online": "unseen.detectors.online:Online",
    "online-id": "unseen.detectors.online:OnlineID",
    "framework": "unseen.detectors.online:Framework",
    "mcm": "unseen.detectors.mcm:MCM",
    "neglabel": "unseen.detectors.neglabel:NegLabel",
}
DEFAULT = "pooled"  # the detector we recommend
ALIASES = {"default": DEFAULT, "algorithm1": "online", "algorithm2": "online-id"}  # the last two: the paper's names

_own: dict[str, type["Detector[Any]"]] = {}


@cache
def _installed() -> dict[str, str]:
    return {one.name: one.value for one in entry_points(group="unseen.detectors")}


def names() -> tuple[str, ...]:
    """Every name that `find` knows: ours, those of installed packages, those registered in this process."""
    return (*dict.fromkeys((*DETECTORS, *_installed(), *_own)),)


def canonical_name(name: str) -> str:
    """The registered name that `name` stands for: "default", and the names of the paper's algorithms."""
    return ALIASES.get(name, name)


def find(name: str) -> type["Detector[Any]"]:
    """The class registered as `name`, imported; "default" is the recommended one.

    >>> find("default").name, find("algorithm1").name
    ('pooled', 'online')
    """
    name = canonical_name(name)
    if name in _own:
        return _own[name]
    where = DETECTORS.get(name) or _installed().get(name)
    if where is None:
        raise SettingError(
            f"expected a detector out of {', '.join(sorted(names()))}, got {name!r}; check the spelling, or "
            "register a class of your own (detectors.register; on the command line --detector module:Class)"
        )
    module, _, attribute = where.partition(":")
    found: type[Detector[Any]] = getattr(importlib.import_module(module), attribute)
    return found


def register(kind: type["Detector[Any]"]) -> str:
    """The name of a detector class of your own, which `find` and `make` know from now on in this process.

    >>> class Mine(find("mcm")):
    ...     name = "mine-in-the-docs"
    >>> register(Mine), find("mine-in-the-docs") is Mine
    ('mine-in-the-docs', True)
    """
    from unseen.detectors.base import Detector

    if not (isinstance(kind, type) and issubclass(kind, Detector) and isinstance(getattr(kind, "name", None), str)):
        raise SettingError(
            f"expected a subclass of unseen.detectors.Detector with a `name`, got {kind!r}; see CONTRIBUTING.md"
        )
    if kind.name in DETECTORS or kind.name in _installed() or _own.setdefault(kind.name, kind) is not kind:
        raise SettingError(f"expected a name that no detector has, got {kind.name!r}; give your class another `name`")
    return kind.name


def make(name: str, labels: "LabelSpace", **settings: Any) -> "Detector[Any]":
    """The detector registered as `name` over `labels`.

    >>> from unseen import demo
    >>> make("neglabel", demo.load().space, groups=10).groups
    10
    """
    kind = find(name)
    try:
        return kind(labels, **settings)
    except TypeError as error:
        raise SettingError(f"expected settings of {name!r}, got {sorted(settings)} ({error}); see its class") from error


def of(value: "Detector[Any] | LabelSpace") -> "Detector[Any]":
    """A detector as it is, or the recommended one over a label space."""
    from unseen.detectors.base import Detector
    from unseen.labels import LabelSpace

    if isinstance(value, LabelSpace):
        return make(DEFAULT, value)
    if not isinstance(value, Detector):
        raise SettingError(
            f"expected a LabelSpace or a detector, got {type(value).__name__}; "
            "pass LabelSpace.build(names, encoder), or detectors.make(name, space)"
        )
    return value


_OFFERED = {"Detector": "base", "DetectorOutput": "base"}
_OFFERED |= {where.partition(":")[2]: where.partition(":")[0].rpartition(".")[2] for where in DETECTORS.values()}


def __getattr__(name: str) -> Any:
    """A class of this package, imported when it is asked for."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_OFFERED[name]}"), name)
