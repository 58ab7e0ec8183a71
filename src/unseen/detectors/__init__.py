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
from unseen.errors import SettingError, check_choice
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
    check_choice("a detector", name, sorted(REGISTRY))
    return REGISTRY[name]


def make(name: str, labels: LabelSpace, **settings: Any) -> Detector[Any]:
    """Return the detector registered as `name` over `labels`."""
    kind = find(name)
    try:
        return kind(labels, **settings)
    except TypeError as error:
        raise SettingError(f"expected settings of {name!r}, got {sorted(settings)} ({error}); see its class") from error
