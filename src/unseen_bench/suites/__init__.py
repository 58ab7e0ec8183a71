"""Benchmark suites as tables, one TOML file each, over feature files or over images on disk."""

from unseen_bench.suites.base import KNOWN, Source, Suite, groups_of
from unseen_bench.suites.images import FoundSet, inventory
from unseen_bench.suites.loading import ENCODER, feature_files_of, load, load_images
from unseen_bench.suites.tables import names, needs_images, read
