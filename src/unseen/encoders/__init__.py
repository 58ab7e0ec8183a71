"""Pixels and texts in, unit vectors of one space out."""

from unseen.encoders.base import Encoder, SplitEncoder
from unseen.encoders.catalogue import load_encoder
