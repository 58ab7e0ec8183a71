"""Where pixels come from: folders, lists, archives, tables and videos, in an order that can be stated."""

from unseen.images.sources import Image, read_images

__all__ = ["Image", "read_images"]
