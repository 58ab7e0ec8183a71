"""Pixels and texts in, unit vectors of one space out."""

from unseen.encoders.base import Encoder, load_encoder

__all__ = ["Encoder", "load_encoder"]
