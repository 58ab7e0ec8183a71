"""Vectors on disk: one format with one reader and one writer, and the cache that fills it."""

from unseen.features.encoding import FeatureCache, encode_images, stream_images
from unseen.features.format import Features, load_features
