"""Post-hoc baselines on features with a linear head. They need labelled images of the known classes, and say so.

They stand outside detectors.REGISTRY, and the benchmark keeps them in tables of their own: everything there works
from names alone. Fit one with `fitted(KNN(labels), z, label)`; afterwards it reads like any other detector.
"""

from __future__ import annotations

from unseen.detectors.posthoc.base import Images, PostHoc, fitted
from unseen.detectors.posthoc.confidence import GEN, MSP, ODIN, GradNorm, HeadEnergy
from unseen.detectors.posthoc.distance import KNN, RMDS, Mahalanobis, ViM
from unseen.detectors.posthoc.shaping import ASH, SCALE, ReAct

REGISTRY: dict[str, type[PostHoc]] = {
    kind.name: kind for kind in (MSP, HeadEnergy, ODIN, GradNorm, GEN, ReAct, ASH, SCALE, KNN, Mahalanobis, RMDS, ViM)
}

__all__ = [
    "ASH",
    "GEN",
    "KNN",
    "MSP",
    "ODIN",
    "REGISTRY",
    "RMDS",
    "SCALE",
    "GradNorm",
    "HeadEnergy",
    "Images",
    "Mahalanobis",
    "PostHoc",
    "ReAct",
    "ViM",
    "fitted",
]
