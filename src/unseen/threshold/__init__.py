"""Turn margins into verdicts: fixed, calibrated on known images, or adaptive from the unlabelled stream."""

from unseen.threshold.rules import REGISTRY, Adaptive, Cuts, Fixed, Threshold, calibrated

__all__ = ["REGISTRY", "Adaptive", "Cuts", "Fixed", "Threshold", "calibrated"]
