"""Know which images belong to none of your classes. No training, no labels: unseen learns from the stream itself."""

from unseen import detectors, threshold
from unseen.encode import load_encoder, read_images
from unseen.labels import LabelSpace
from unseen.session import Session, Verdict

__version__ = "0.1.0"
__all__ = ["LabelSpace", "Session", "Verdict", "__version__", "detectors", "load_encoder", "read_images", "threshold"]
