"""Sessions before their first sample: equal streams start from one, which is made once."""

import threading
from collections import OrderedDict

from unseen import LabelSpace
from unseen.serve.stream.config import StreamConfig
from unseen.session import Session

KEPT = 4  # of the last that were asked for; each holds a state

_kept: OrderedDict[str, Session] = OrderedDict()
_lock = threading.Lock()


def fresh_session(config: StreamConfig, labels: LabelSpace) -> Session:
    """A session that has observed nothing, for a stream with this configuration and label space."""
    key = f"{labels.fingerprint} {labels.id_anchors.dtype} {config.recipe}"
    with _lock:  # the first of several that open at once makes it, the others wait
        if key not in _kept:
            _kept[key] = config.spec(labels).build()
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
        _kept.move_to_end(key)
        return _kept[key].at(_kept[key].snapshot)
