"""The truth about the images inside the package, in the order of `unseen.demo.load()`."""

import json

from unseen import demo
from unseen.storage.files import load_tensors
from unseen_bench.trial import Trial


def trial() -> Trial:
    """The embedded images as a trial: which of them are animals, and where each comes from.

    >>> trial().sources
    ('animals', 'vehicles', 'digits', 'clothes')
    """
    tensors, text = load_tensors(demo.PACK, kind=demo.KIND)
    return Trial(demo.load().z, tensors["label"], tensors["source"], tuple(json.loads(text)["sources"]))
