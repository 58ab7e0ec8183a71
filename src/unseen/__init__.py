"""Know which images belong to none of your classes. No training, no labels: unseen learns from the stream itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen import detectors, discover, threshold
    from unseen.encoders import load_encoder
    from unseen.images import read_images
    from unseen.labels import LabelSpace
    from unseen.session import Session, SessionSpec
    from unseen.verdicts import Verdict, Verdicts

__version__ = "0.2.0"
__all__ = [
    "LabelSpace",
    "Session",
    "SessionSpec",
    "Verdict",
    "Verdicts",
    "__version__",
    "detectors",
    "discover",
    "load_encoder",
    "read_images",
    "threshold",
]

_HOMES = {"load_encoder": "encoders", "read_images": "images", "LabelSpace": "labels", "Session": "session"}
_HOMES |= {"SessionSpec": "session", "Verdict": "verdicts", "Verdicts": "verdicts"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: torch takes seconds, in which Ctrl-C would end in a traceback."""
    if name not in __all__:
        raise AttributeError(f"module 'unseen' has no attribute {name!r}")
    home = importlib.import_module(f"unseen.{_HOMES.get(name, name)}")
    return getattr(home, name) if name in _HOMES else home


def __dir__() -> list[str]:
    """Return what there is to import, imported or not."""
    return sorted({*globals(), *__all__})
