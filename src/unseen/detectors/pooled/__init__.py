"""The recommended detector: pool the frozen evidence of images that look alike."""

from unseen.detectors.pooled.detector import PooledEvidence

__all__ = ["PooledEvidence"]
