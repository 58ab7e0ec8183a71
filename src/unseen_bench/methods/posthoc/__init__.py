"""Post-hoc baselines on features with a linear head. They need labelled images of the known classes.

They are not in unseen.detectors, whose methods work from names alone, and the benchmark keeps them in tables of
their own. Fit one with `fit(KNN(labels), z, label)`; afterwards it reads like any other detector.
"""

from unseen_bench.methods.posthoc.base import LabelledImages, PostHoc, fit
from unseen_bench.methods.posthoc.confidence import GEN, MSP, ODIN, GradNorm, HeadEnergy
from unseen_bench.methods.posthoc.distance import KNN, RMDS, Mahalanobis, ViM
from unseen_bench.methods.posthoc.shaping import ASH, SCALE, ReAct

REGISTRY: dict[str, type[PostHoc]] = {
    kind.name: kind for kind in (MSP, HeadEnergy, ODIN, GradNorm, GEN, ReAct, ASH, SCALE, KNN, Mahalanobis, RMDS, ViM)
}
