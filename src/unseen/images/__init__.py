"""Where pixels come from: folders, lists, archives, tables and videos, in an order that can be stated."""

from unseen.images.entry import Batch, Entry, Image, Skipped
from unseen.images.regions import read_regions
from unseen.images.sources import find_images, read_entries, read_images
