"""Where the project keeps what can be made again: models, text vectors, features of suites, compiled kernels."""

import os
import sys
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """Return a folder of the cache: under $UNSEEN_CACHE, or under the platform's own place for caches."""
    return _root().joinpath(*parts)


def _root() -> Path:
    if chosen := os.environ.get("UNSEEN_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/unseen"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "unseen"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unseen"
