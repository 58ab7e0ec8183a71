"""The configuration of a stream, fixed for its life, and its file."""

import hashlib
import json
import re
import threading
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from unseen import LabelSpace, detectors
from unseen.errors import SettingError, StateError, UnseenError
from unseen.serve.settings import INSIDE
from unseen.session import Session, SessionSpec
from unseen.storage.files import replacing

STREAM_ID = re.compile("[0-9a-f]{16}")
FORMAT = 2  # of stream.json; 0.1 wrote no format
UNFIT = (TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError)  # what settings of a wrong kind lead to

_fresh: dict[str, Session] = {}
_making = threading.Lock()


@dataclass(frozen=True)
class StreamConfig:
    """The configuration of a stream, fixed for its life."""

    id: str
    name: str
    owner: str
    detector: str
    settings: dict[str, Any] = field(default_factory=dict)
    threshold: str = "adaptive"
    threshold_settings: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    format: int = FORMAT
    request: str = ""  # hashes of the idempotency key and the body that asked for the stream

    @property
    def refusal(self) -> str:
        """Why this version cannot go on with the stream and what to do, or ""."""
        if self.format > FORMAT:
            return f"expected a stream of format {FORMAT} or older, got {self.format}; install the unseen that made it"
        if self.format < 2 and self.detector == "default":
            return (
                "expected a stream of unseen 0.2, got one of 0.1 with the detector `default`, whose state had other "
                "parts; go on with unseen 0.1, or create a new stream from its space.safetensors"
            )
        return ""

    @property
    def recipe(self) -> str:
        """What decides how the stream computes, as text: equal for streams that compute alike."""
        return json.dumps([self.detector, self.settings, self.threshold, self.threshold_settings], sort_keys=True)

    def spec(self, labels: LabelSpace) -> SessionSpec:
        """How the stream's session is built."""
        return SessionSpec(
            labels, self.detector, self.settings, self.threshold, self.threshold_settings, keep=INSIDE.unknown
        )

    def fresh(self, labels: LabelSpace) -> Session:
        """A session that has observed nothing; equal streams start from one, which is made once."""
        key = f"{labels.fingerprint} {labels.id_anchors.dtype} {self.recipe}"
        with _making:  # the first of several that open at once makes it, the others wait
            made = _fresh.pop(key, None) or self.spec(labels).build()
            _fresh[key] = made  # the latest is last
            if len(_fresh) > INSIDE.fresh:
                del _fresh[next(iter(_fresh))]
        return made.at(made.snapshot)

    def check(self, labels: LabelSpace) -> None:
        """Refuse settings that a service cannot work with, or that do not survive one sample."""
        if parts := detectors.find(self.detector).parts:
            raise SettingError(
                f"expected a detector of whole-image vectors, got {self.detector!r}, which needs {parts}; "
                "choose another for a service"
            )
        try:
            self.spec(labels).build().observe(labels.id_anchors[:1])
        except UnseenError:
            raise
        except UNFIT as error:
            raise SettingError(f"expected settings that fit {self.detector!r}, got {error}; see its class") from error


def write_config(folder: Path, config: StreamConfig) -> None:
    """Write the configuration of a stream, with a checksum."""
    body = json.dumps(asdict(config), sort_keys=True)
    with replacing(folder / "stream.json") as path:
        path.write_text(json.dumps({"stream": body, "sha256": hashlib.sha256(body.encode()).hexdigest()}))


def read_config(folder: Path) -> StreamConfig:
    """The configuration of a stream; refuse an altered file."""
    try:
        file = json.loads((folder / "stream.json").read_text())
        if hashlib.sha256(file["stream"].encode()).hexdigest() != file["sha256"]:
            raise ValueError("checksum differs")
        found = {"format": 1} | json.loads(file["stream"])
        return StreamConfig(**{one.name: found[one.name] for one in fields(StreamConfig) if one.name in found})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"expected a whole stream.json, got a damaged one ({error}); restore a backup") from error
