"""Every error unseen raises on purpose; each message says what was expected, what came, and what to do.

UnseenError
├── FeatureError      vectors a detector cannot use: wrong width, not finite, not unit length, wrong dtype
├── LabelError        names or anchors that do not make a label space
├── SettingError      an option outside its range, or a name nobody registered
├── StateError        a checkpoint that is torn, tampered with, or belongs to something else
├── DataError         a file, image list or feature set that is missing or not what it should be
│   └── StoreError    an object store that cannot be reached, or refuses
├── ImageError        one image that cannot be decoded; readers report it and go on
├── EncoderError      a model that cannot be found, fetched or trusted
├── MissingExtra      an optional dependency that is not installed
└── ServiceError      a request the service refuses: over a limit, without a key, in conflict, out of disk
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from shlex import quote
from typing import Any

PACKAGES = {
    "PIL": "pillow",
    "lance": "pylance",
    "open_clip": "open_clip_torch",
    "sklearn": "scikit-learn",
}  # named unlike their modules


class UnseenError(Exception):
    """Base of all errors raised on purpose."""


class FeatureError(UnseenError, ValueError):
    """Feature vectors that a detector cannot use."""


class LabelError(UnseenError, ValueError):
    """Names or anchors that do not make a label space."""


class SettingError(UnseenError, ValueError):
    """A setting outside its range, or an unknown name."""


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a value that is none of `choices`."""
    if value not in (known := list(choices)):
        raise SettingError(f"expected {what} out of {', '.join(known)}, got {value!r}; check the spelling")


class StateError(UnseenError, ValueError):
    """A checkpoint that is torn, tampered with, or belongs to another label space or detector."""


class DataError(UnseenError, ValueError):
    """A data file that is missing or not what it should be."""


class StoreError(DataError, OSError):
    """An object store that cannot be reached, or does not let us in."""


class ImageError(UnseenError, ValueError):
    """One image that cannot be decoded."""


class EncoderError(UnseenError, RuntimeError):
    """A model that cannot be found, fetched or trusted."""


class MissingExtra(UnseenError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"expected the package {package!r} (extra unseen[{extra}]) for this, got none; "
            f"install it with: {extra_command(extra)}"
        )

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        """Let it travel from a worker as what it was made of, not as its message."""
        return MissingExtra, (self.package, self.extra)


def extra_command(extra: str) -> str:
    """The command that installs what an extra brings, wherever this package came from: its requirements by name."""
    from importlib import metadata  # late: few need it, and it takes a while

    try:
        every = metadata.requires("unseen") or []
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        every = []
    split = (one.partition(";") for one in every)
    wanted = [name.strip() for name, _, marker in split if f"extra == '{extra}'" in marker.replace('"', "'")]
    return f"pip install {' '.join(map(quote, wanted or [f'unseen[{extra}]']))}"


def import_extra(module: str, extra: str) -> Any:
    """An optional module, or say which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingExtra(PACKAGES.get(package, package), extra) from error
    except Exception as error:  # such as a torchvision built for another torch, or a system library that is missing
        raise UnseenError(
            f"expected the package {module!r} to load, got {type(error).__name__}: {error}; install builds of it, "
            "and of what it imports, that fit the torch you have"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of the message of an error, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class ServiceError(UnseenError):
    """A request that the service refuses, with the HTTP status that says so and a code for machines ("" for none)."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def __reduce__(self) -> tuple[type[ServiceError], tuple[int, str, str]]:
        """Let it travel from a worker with its status."""
        return ServiceError, (self.status, str(self), self.code)
