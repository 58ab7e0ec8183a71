"""Benchmark suites as tables, one TOML file each, over feature files or over images on disk."""

from unseen_bench.suites.base import KNOWN, Source, Suite, groups_of, learned_file, names, needs_images, read
from unseen_bench.suites.images import FoundSet, imagenet_classes, inventory, is_whole
from unseen_bench.suites.loading import ENCODER, feature_files_of, load, load_images
