"""The data folder: streams made whole or not at all, deleted without a trace, and one process that may write.

DATA/lock                       held by the one process that may write here
DATA/keys.db                    API keys, hashed
DATA/spaces/NAME.safetensors    label spaces that an operator offers by name
DATA/streams/ID/                stream.json, space.safetensors, journal.db, snapshots/, spaces/
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import threading
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from unseen import LabelSpace, detectors
from unseen.errors import ServiceError, SettingError, StateError, UnseenError
from unseen.serve.settings import INSIDE
from unseen.session import Session
from unseen.spec import SessionSpec
from unseen.storage.files import replacing, sync_folder

OURS = {"keys.db", "keys.db-journal", "keys.json", "keys.required", "logs", "spaces", "cache", "lock"}  # before streams
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
            if len(_fresh) > 4:
                del _fresh[next(iter(_fresh))]
        return made.at()

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


class DataFolder:
    """A data folder that this process has locked."""

    def __init__(self, data: Path) -> None:
        self.data, self.streams = data, data / "streams"
        try:
            if data.exists():
                refuse_foreign_folder(data)
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.streams, data / "spaces"):
                folder.mkdir(exist_ok=True, mode=0o700)
            data.chmod(data.stat().st_mode & 0o770)  # what was learned is nobody else's to read
            self._lock = exclusive_lock(data / "lock")
        except OSError as error:
            raise SettingError(f"expected a writable folder, got {data} ({error.strerror}); choose --data") from error

    def stream_folders(self) -> list[Path]:
        """The folders of all streams, after removing those half made or half deleted."""
        for folder in self.streams.iterdir():
            if folder.name.startswith((".new-", ".old-")):
                _remove(folder)
        return sorted(path for path in self.streams.iterdir() if STREAM_ID.fullmatch(path.name) and path.is_dir())

    def add_stream(self, labels: LabelSpace, wanted: StreamConfig) -> StreamConfig:
        """Make the folder of a stream."""
        config = replace(wanted, created=datetime.now(UTC).isoformat(timespec="seconds"))
        config = config if config.id else replace(config, id=secrets.token_hex(8))
        if (self.streams / config.id).exists():
            raise ServiceError(409, f"expected the id of no stream, got {config.id}; create it with another")
        half = self.streams / f".new-{config.id}"
        half.mkdir()
        try:
            labels.save(half / "space.safetensors")
            write_config(half, config)
            half.rename(self.streams / config.id)
            sync_folder(self.streams)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise ServiceError(507, f"expected room for a stream, got {error}; free some space") from error
        return config

    def remove_stream(self, id: str) -> None:
        """Remove the folder of a stream, and what it is a link to unless that is the folder of another stream."""
        gone = self.streams / f".old-{id}"
        (self.streams / id).rename(gone)
        if gone.is_symlink() and (target := gone.resolve()).parent != self.streams.resolve():
            shutil.rmtree(target)
        _remove(gone)

    def spaces(self) -> dict[str, Path]:
        """The label spaces that the operator put into the data folder."""
        return {path.stem: path for path in (self.data / "spaces").glob("*.safetensors")}

    def space(self, name: str) -> LabelSpace:
        """A label space that the operator offers."""
        offered = self.spaces()
        if name not in offered:
            raise ServiceError(422, f"expected a label space out of {sorted(offered)}, got {name!r}; check the name")
        return LabelSpace.load(offered[name])

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


def refuse_foreign_folder(data: Path) -> None:
    """Refuse a folder that is not this user's alone to write, or that holds what no service has made."""
    found = data.stat()
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        what = "one of another user or that everyone may write to"
    elif not (data / "streams").is_dir() and {path.name for path in data.iterdir()} - OURS:
        what = "one with other content"
    else:
        return
    raise SettingError(f"expected an empty folder or one of a service, got {data}, {what}; pass --data {data}/unseen")


def _remove(folder: Path) -> None:
    """Remove a folder, or a link to one."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def exclusive_lock(path: Path) -> IO[str]:
    """The lock of a folder, held until it is closed; refuse one that another process holds."""
    handle = path.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise StateError(
            f"expected to be the only service on {path.parent}, got another; stop it or choose another --data"
        ) from error
    return handle
