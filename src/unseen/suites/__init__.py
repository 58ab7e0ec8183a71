"""Benchmark suites as tables, one TOML file each, over feature files or over images on disk."""

from unseen.suites.base import KNOWN, Source, Suite
from unseen.suites.images import FoundSet, inventory
from unseen.suites.loading import feature_files_of, load, load_images
from unseen.suites.tables import names, needs_images, read
