"""API keys: shown once, kept as hashes in a table, each with a scope and an owner."""

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

from unseen.errors import ServiceError, SettingError, StateError, check_choice
from unseen.serve.settings import EVERYONE, Settings

log = logging.getLogger("unseen.serve")

TABLE, MARKER = "keys.db", "keys.required"  # beside the table once there was a key
OLD = "keys.json"  # where unseen 0.2 kept them
CREATE = """CREATE TABLE IF NOT EXISTS keys (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, scope TEXT NOT NULL, sha256 TEXT NOT NULL, expires REAL NOT NULL)"""
KEY = "unseen.key"  # where a request's scope has the key it came with
SCOPES = ("read", "observe", "admin")  # each includes those before it


@dataclass(frozen=True)
class ApiKey:
    """Who may do what. The secret is 256 random bits, so a plain hash of it cannot be guessed backwards."""

    id: str
    owner: str
    scope: str
    sha256: str
    expires: float = 0  # seconds of the epoch; 0 is never


LOCAL = ApiKey("local", EVERYONE, "admin", "")  # who calls from the same machine while there are no keys


class ApiKeys:
    """The keys of a data folder: one SQLite table, so that changes of several processes come one after another."""

    def __init__(self, data: Path) -> None:
        self.path, self._marker, self._old = data / TABLE, data / MARKER, data / OLD
        self._needed = False
        self._reader: sqlite3.Connection | None = None
        self._read = 0  # the file that the reader is of
        self._damage = ""  # what was logged of a table that could not be read

    @property
    def needed(self) -> bool:
        """Whether there ever was a key: revoking the last one, or losing the table, opens nothing."""
        self._needed = self._needed or any(file.exists() for file in (self._marker, self.path, self._old))
        return self._needed

    def all(self) -> list[ApiKey]:
        """Every key, in order of creation."""
        return self._rows("ORDER BY rowid")

    def add(self, owner: str, scope: str, expires: float = 0) -> str:
        """Make a key, good until a time (0: for ever), and return the only copy of its text."""
        with self._changing() as db:
            return _added(db, owner, scope, expires)

    def revoke(self, key: str) -> None:
        """Forget a key; who holds it is refused from now on."""
        with self._changing() as db:
            _found(db, key)
            db.execute("DELETE FROM keys WHERE id = ?", (key,))

    def rotate(self, key: str, grace: float, expires: float = 0) -> str:
        """Make a successor with the same owner and scope; the old key is good for `grace` seconds more."""
        with self._changing() as db:
            old, ends = _found(db, key), time.time() + grace
            db.execute("UPDATE keys SET expires = ? WHERE id = ?", (min(ends, old.expires or ends), key))
            return _added(db, old.owner, old.scope, expires)

    def check(self, text: str | None) -> ApiKey:
        """The key that `text` is; refuse it in constant time otherwise, and every text while none can be read."""
        _, _, rest = (text or "").partition("_")
        try:
            found = self._rows("WHERE id = ?", rest.partition("_")[0])
            self._damage = ""
        except StateError as error:
            if str(error) != self._damage:  # once, until it changes
                log.error("%s", error)
            self._damage, self._read = str(error), 0
            what = "expected keys that can be read, got a damaged keys.db; the operator restores it"
            raise ServiceError(503, what) from error
        key = found[0] if found else None
        if text is None or not hmac.compare_digest(_hashed(text), key.sha256 if key else "0" * 64) or key is None:
            raise ServiceError(401, "expected a valid API key, got none; send it as: Authorization: Bearer unseen_…")
        if key.expires and key.expires < time.time():
            raise ServiceError(401, "expected a key that is good, got one that expired; ask for another", "key_expired")
        return key

    def _rows(self, which: str, *values: str) -> list[ApiKey]:
        if self._old.exists():
            with self._changing():  # takes over the keys of 0.2
                pass
        with _reading(self.path):
            if (file := _inode(self.path)) != self._read:  # another than before: restored, or deleted
                if self._reader:
                    self._reader.close()
                self._reader = sqlite3.connect(self.path, timeout=5, check_same_thread=False) if file else None
                self._read = file
            rows = self._reader.execute(f"SELECT * FROM keys {which}", values) if self._reader else ()
            return [ApiKey(*row) for row in rows]

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Yield the table in a transaction of its own, made private and, where it is new, with the keys of 0.2."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._marker.touch(mode=0o600)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            folder = self.path.parent
            raise SettingError(f"expected a writable folder, got {folder} ({error.strerror}); choose --data") from error
        with _reading(self.path), closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            is_new = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            db.execute(CREATE)
            if is_new and self._old.exists():
                rows = [astuple(ApiKey(**row)) for row in json.loads(self._old.read_text())]
                db.executemany("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", rows)
            yield db
            db.execute("COMMIT")
        self._old.unlink(missing_ok=True)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Refuse keys that cannot be read, in the table or in the file of 0.2."""
    try:
        yield
    except (sqlite3.Error, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StateError(f"expected keys in {path}, got {error}; restore a backup or delete it") from error


def _added(db: sqlite3.Connection, owner: str, scope: str, expires: float) -> str:
    check_choice("a scope", scope, SCOPES)
    if not re.fullmatch(r"\*|[\w.-]{1,64}", owner):
        raise SettingError(f"expected an owner of letters, digits, . _ -, or *, got {owner!r}; choose another")
    id = secrets.token_hex(4)
    text = f"unseen_{id}_{secrets.token_urlsafe(32)}"
    db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", (id, owner, scope, _hashed(text), expires))
    return text


def _found(db: sqlite3.Connection, key: str) -> ApiKey:
    keys = {row[0]: ApiKey(*row) for row in db.execute("SELECT * FROM keys")}
    if key not in keys:
        raise SettingError(f"expected the id of a key out of {sorted(keys)}, got {key!r}; list them first")
    return keys[key]


def _inode(path: Path) -> int:
    """Which file a path leads to, 0 for none."""
    try:
        return path.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_address(settings: Settings) -> None:
    """Refuse an address that others can reach, unless nginx is in front of it and there is a key."""
    if is_loopback(settings.host):
        return
    if not settings.behind_proxy:
        raise SettingError(
            f"expected a loopback address, got {settings.host}: limits, time-outs and TLS for strangers are nginx's; "
            "put it in front (deploy/nginx.conf), then pass --behind-proxy"
        )
    if not ApiKeys(settings.data).all():
        raise SettingError(
            f"expected an API key before binding {settings.host}, got none; make one with "
            f"`unseen keys add --scope admin --data {settings.data}`"
        )
