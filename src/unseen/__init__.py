"""Know which images belong to none of your classes. No training, no labels: unseen learns from the stream itself.

    encoder = unseen.load_encoder("offline")                          # or "ViT-B/16", a hub id, a folder, your model
    space = unseen.LabelSpace.build(["cat", "dog"], encoder)          # names, and negatives mined for them
    session = unseen.Session(space, encoder=encoder)                  # the recommended detector, an adaptive threshold
    for batch in unseen.read_images("photos/"):
        for image, verdict in zip(batch, session.observe(batch)):     # learns and judges; session.score only judges
            print(image.path, verdict.name or "unknown", verdict.p_known)
    session.save("state.safetensors")                                 # unseen.Session.load goes on

load_encoder     images and texts -> unit vectors
LabelSpace       known and negative names with their vectors: build, save, load
read_images      folders, globs, lists, archives, videos, or images you hold -> batches
read_regions     a photo and what a detector found in it -> a batch of its regions
Session          one stream in progress: observe, score, calibrate, rejudge, save, load
SessionSpec      the description that a session is built from
Verdict          what is decided about an image
Verdicts         a table of those: records, columns, pandas
Client           a service from afar: observe and score as a session does
pipeline         names in, a function of images out: the habit of transformers
detectors        the methods by name: detectors.make("online", space)
threshold        the rules that turn margins into verdicts
discover         what the unknown images are: groups, reasons, new names

The command line is `unseen --help`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unseen.version import __version__ as __version__

if TYPE_CHECKING:  # `as` says that these are offered; `__all__` would make `help(unseen)` print every class
    from unseen import detectors as detectors
    from unseen import discover as discover
    from unseen import threshold as threshold
    from unseen.encoders import load_encoder as load_encoder
    from unseen.images import read_images as read_images
    from unseen.images import read_regions as read_regions
    from unseen.labels import LabelSpace as LabelSpace
    from unseen.serve.client import Client as Client
    from unseen.session import Session as Session
    from unseen.spec import SessionSpec as SessionSpec
    from unseen.verdicts import Verdict as Verdict
    from unseen.verdicts import Verdicts as Verdicts
    from unseen.zero_shot import pipeline as pipeline

_HOMES = {
    "load_encoder": "encoders",
    "read_images": "images",
    "read_regions": "images",
    "LabelSpace": "labels",
    "Session": "session",
    "SessionSpec": "spec",
    "Client": "serve.client",
    "Verdict": "verdicts",
    "Verdicts": "verdicts",
    "pipeline": "zero_shot",
    "detectors": "",
    "discover": "",
    "threshold": "",
}  # what is offered, and the module it is in; "" for a module


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: torch takes seconds, in which Ctrl-C would end in a traceback."""
    if name not in _HOMES:
        raise AttributeError(f"module 'unseen' has no attribute {name!r}")
    home = importlib.import_module(f"unseen.{_HOMES[name] or name}")
    return getattr(home, name) if _HOMES[name] else home


def __dir__() -> list[str]:
    """What there is to import, imported or not."""
    return sorted({*globals(), *_HOMES})
