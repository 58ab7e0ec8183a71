"""Images and texts in, unit vectors out."""

from unseen.encode.base import Encoder, load_encoder
from unseen.encode.images import read_images

__all__ = ["Encoder", "load_encoder", "read_images"]
