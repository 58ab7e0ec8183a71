"""Know which images belong to none of your classes. No training, no labels: unseen learns from the stream itself."""

from unseen import detectors
from unseen.labels import LabelSpace

__version__ = "0.1.0"
__all__ = ["LabelSpace", "__version__", "detectors"]
