"""Benchmark suites as tables, one TOML file each, over feature files or over images on disk."""

from unseen.suites.base import KNOWN, Source, Suite
from unseen.suites.feature_files import files_of
from unseen.suites.images import FoundSet, inventory
from unseen.suites.loading import load, load_images
from unseen.suites.tables import names, needs_images, read


def feature_files_of(name: str) -> list[str]:
    """Return the feature files that a suite reads."""
    return files_of(read(name))


__all__ = [
    "KNOWN",
    "FoundSet",
    "Source",
    "Suite",
    "feature_files_of",
    "inventory",
    "load",
    "load_images",
    "names",
    "needs_images",
    "read",
]
