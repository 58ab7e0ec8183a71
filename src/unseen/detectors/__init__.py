"""One file per published method, one protocol (base.Detector), one dict that names them all."""

from typing import Any

from unseen.detectors.adaneg import AdaNeg
from unseen.detectors.base import Detector, Reading
from unseen.detectors.clipscope import CLIPScope
from unseen.detectors.csp import CSP
from unseen.detectors.dnm import DNM
from unseen.detectors.energy import Energy
from unseen.detectors.entropy import Entropy
from unseen.detectors.eoe import EOE
from unseen.detectors.framework import Framework
from unseen.detectors.glmcm import GLMCM
from unseen.detectors.infoood import InfoOOD
from unseen.detectors.maxlogit import MaxLogit
from unseen.detectors.mcm import MCM
from unseen.detectors.neglabel import NegLabel
from unseen.detectors.online import Online
from unseen.detectors.online_id import OnlineID
from unseen.detectors.pooled import PooledEvidence
from unseen.detectors.tanl import TANL
from unseen.detectors.variance import Variance
from unseen.errors import SettingError
from unseen.labels import LabelSpace

REGISTRY: dict[str, type[Detector[Any]]] = {
    kind.name: kind
    for kind in (
        PooledEvidence,
        Online,
        OnlineID,
        Framework,
        MCM,
        MaxLogit,
        Energy,
        Entropy,
        Variance,
        NegLabel,
        CSP,
        AdaNeg,
        DNM,
        EOE,
        TANL,
        CLIPScope,
        GLMCM,
        InfoOOD,
    )
}


DEFAULT = PooledEvidence.name  # the detector we recommend


def canonical_name(name: str) -> str:
    """Return the registered name that `name` stands for: the alias "default" is the recommended detector."""
    return DEFAULT if name == "default" else name


def find(name: str) -> type[Detector[Any]]:
    """Return the class registered as `name`; "default" is the recommended one."""
    name = canonical_name(name)
    if name not in REGISTRY:
        raise SettingError(
            f"expected a detector out of {', '.join(sorted(REGISTRY))}, got {name!r}; check the spelling, or "
            "register a class of your own (detectors.register; on the command line --detector module:Class)"
        )
    return REGISTRY[name]


def register(kind: type[Detector[Any]]) -> str:
    """Add a detector class of your own under its `name`, for this process, and return that name.

    >>> class Mine(MCM):
    ...     name = "mine"
    >>> register(Mine), find("mine") is Mine, REGISTRY.pop("mine") is Mine
    ('mine', True, True)
    """
    if not (isinstance(kind, type) and issubclass(kind, Detector) and isinstance(getattr(kind, "name", None), str)):
        raise SettingError(
            f"expected a subclass of unseen.detectors.Detector with a `name`, got {kind!r}; see CONTRIBUTING.md"
        )
    if REGISTRY.setdefault(kind.name, kind) is not kind:
        raise SettingError(f"expected a name that no detector has, got {kind.name!r}; give your class another `name`")
    return kind.name


def make(name: str, labels: LabelSpace, **settings: Any) -> Detector[Any]:
    """Return the detector registered as `name` over `labels`.

    >>> from unseen import demo
    >>> make("neglabel", demo.load().space, groups=10).groups
    10
    """
    kind = find(name)
    try:
        return kind(labels, **settings)
    except TypeError as error:
        raise SettingError(f"expected settings of {name!r}, got {sorted(settings)} ({error}); see its class") from error
