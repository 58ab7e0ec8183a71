"""Benchmark suites as tables, and the feature sets they name."""

from unseen.suites.features import FeatureSet

__all__ = ["FeatureSet"]
