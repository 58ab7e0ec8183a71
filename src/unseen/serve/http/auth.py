"""API keys: shown once, kept as hashes, each with a scope and an owner."""

import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import time
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import ServiceError, SettingError, StateError, check_choice
from unseen.serve.settings import EVERYONE, Settings
from unseen.storage.files import replacing

if TYPE_CHECKING:
    from starlette.types import Scope  # `unseen keys` needs no server

log = logging.getLogger("unseen.serve")

MARKER = "keys.required"  # beside the keys once there was one
NEEDS_KEY = "unseen.needs_key"  # where a request's scope says whether it needs a key
KEY = "unseen.key"  # where a request's scope has the key it came with; None for a stranger
SCOPES = ("read", "observe", "admin")  # each includes those before it


@dataclass(frozen=True)
class ApiKey:
    """Who may do what. The secret is 256 random bits, so a plain hash of it cannot be guessed backwards."""

    id: str
    owner: str
    scope: str
    sha256: str
    expires: float = 0  # seconds of the epoch; 0 is never

    def allows(self, scope: str) -> bool:
        """Whether this key's scope includes another."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


LOCAL = ApiKey("local", EVERYONE, "admin", "")  # who calls from the same machine while there are no keys


class ApiKeys:
    """The keys of a data folder."""

    def __init__(self, path: Path) -> None:
        self.path, self._marker = path, path.with_name(MARKER)
        self._version = -1
        self._keys: dict[str, ApiKey] = {}
        self._folder, self._needed, self._checked = str(path.parent), False, -1
        self._damage = ""  # why keys.json could not be read, since the service runs
        self._read()

    @property
    def needed(self) -> bool:
        """Whether there ever was a key: revoking the last one, or losing the file, opens nothing."""
        if not self._needed and (changed := _changed(self._folder)) != self._checked:
            self._needed, self._checked = self._marker.exists() or self.path.exists(), changed
        return self._needed

    def __len__(self) -> int:
        self._read()  # the first key, too, may have been added by another process
        return len(self._keys)

    def all(self) -> list[ApiKey]:
        """Every key, in order of creation."""
        return list(self._keys.values())

    def add(self, owner: str, scope: str, expires: float = 0) -> str:
        """Make a key, good until a time (0: for ever), and return the only copy of its text."""
        check_choice("a scope", scope, SCOPES)
        if not re.fullmatch(r"\*|[\w.-]{1,64}", owner):
            raise SettingError(f"expected an owner of letters, digits, . _ -, or *, got {owner!r}; choose another")
        key = ApiKey(secrets.token_hex(4), owner, scope, "")
        text = f"unseen_{key.id}_{secrets.token_urlsafe(32)}"
        self._keys[key.id] = ApiKey(key.id, owner, scope, _hashed(text), expires)
        self._write()
        return text

    def revoke(self, key: str) -> None:
        """Forget a key; who holds it is refused from now on."""
        self._find(key)
        del self._keys[key]
        self._write()

    def rotate(self, key: str, grace: float, expires: float = 0) -> str:
        """Make a successor with the same owner and scope; the old key is good for `grace` seconds more."""
        old = self._find(key)
        ends = time.time() + grace
        self._keys[key] = replace(old, expires=min(ends, old.expires or ends))
        return self.add(old.owner, old.scope, expires)

    def _find(self, key: str) -> ApiKey:
        if key not in self._keys:
            raise SettingError(f"expected the id of a key out of {sorted(self._keys)}, got {key!r}; list them first")
        return self._keys[key]

    def check(self, text: str | None) -> ApiKey:
        """The key that `text` is; refuse it in constant time otherwise."""
        self._read_again()
        _, _, rest = (text or "").partition("_")
        key = self._keys.get(rest.partition("_")[0])
        if text is None or not hmac.compare_digest(_hashed(text), key.sha256 if key else "0" * 64) or key is None:
            raise ServiceError(401, "expected a valid API key, got none; send it as: Authorization: Bearer unseen_…")
        if key.expires and key.expires < time.time():
            raise ServiceError(401, "expected a key that is good, got one that expired; ask for another", "key_expired")
        return key

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._marker.touch(mode=0o600)
            with replacing(self.path) as path:
                path.write_text(json.dumps([asdict(key) for key in self._keys.values()], indent=1))
            self.path.chmod(0o600)
        except OSError as error:
            folder = self.path.parent
            raise SettingError(f"expected a writable folder, got {folder} ({error.strerror}); choose --data") from error
        self._read()

    def _read_again(self) -> None:
        """Take over what another process has written; while that cannot be read no key is good."""
        try:
            self._read()
        except StateError as error:
            self._keys, self._version, self._damage = {}, _changed(str(self.path)), str(error)
            log.error("%s", error)  # once, until the file changes
        if self._damage:
            raise ServiceError(503, "expected keys that can be read, got a damaged keys.json; the operator restores it")

    def _read(self) -> None:
        """Take over what another process has written since."""
        version = _changed(str(self.path))
        if version != self._version:
            self._keys, self._version, self._damage = {key.id: key for key in _read(self.path)}, version, ""


def header(scope: "Scope", wanted: bytes) -> str | None:
    """A header of a request, the first of that name, or None."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), None)


def bearer_secret(scope: "Scope") -> str | None:
    """The secret in the Authorization header of a request, if there is one."""
    scheme, _, secret = (header(scope, b"authorization") or "").partition(" ")
    return secret if scheme.lower() == "bearer" else None


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refuse_open_address(settings: Settings) -> None:
    """Refuse an address that others can reach while there is no key."""
    if not is_loopback(settings.host) and not len(ApiKeys(settings.data / "keys.json")):
        raise SettingError(
            f"expected an API key before binding {settings.host}, got none; make one with "
            f"`unseen keys add --scope admin --data {settings.data}`"
        )


def _read(path: Path) -> list[ApiKey]:
    try:
        return [ApiKey(**row) for row in json.loads(path.read_text())] if path.exists() else []
    except (OSError, ValueError, TypeError) as error:
        raise StateError(f"expected a list of keys in {path}, got {error}; restore a backup or delete it") from error


def _changed(path: str) -> int:
    """When a file, or the list of files in a folder, was last changed; 0 where there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
