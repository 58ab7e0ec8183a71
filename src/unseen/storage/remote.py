"""Where files lie: a local path, or a place in an object store that offers what this package asks of a path."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from unseen.errors import DataError, SettingError, StoreError, import_extra


def location(source: str | Path | RemotePath) -> Path | RemotePath:
    """A path for what is on this machine (file:// too), a `RemotePath` for any other URI."""
    if isinstance(source, Path | RemotePath):
        return source
    scheme, mark, _ = source.partition("://")
    if not mark:
        return Path(source)
    if urlsplit(source).password:  # it would stand in every key, manifest and message
        raise SettingError(
            f"expected credentials in the environment or a profile, got some in a {scheme}:// URI; "
            "take them out (S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE)"
        )
    return Path(unquote(urlsplit(source).path)) if scheme == "file" else RemotePath(source)


@dataclass(frozen=True)
class RemotePath:
    """A file or folder of an object store by its URI; it travels to a worker as text and is opened there.

    pyarrow's own file systems come first (s3, gs, abfs, hdfs), then whatever fsspec has a driver for.
    """

    uri: str
    size: int | None = None  # known from a listing, to save one request per file
    changed: int | None = None

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str | Path) -> RemotePath:
        return self._at(f"{urlsplit(self.uri).path.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(urlsplit(self.uri).path).name

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return self._at(str(PurePosixPath(urlsplit(self.uri).path).parent))

    def absolute(self) -> RemotePath:
        """Itself: a URI has no working folder."""
        return self

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        return self._kind() != "NotFound"

    def is_dir(self) -> bool:
        """Whether there is a folder."""
        return self._kind() == "Directory"

    def is_file(self) -> bool:
        """Whether there is a file."""
        return self._kind() == "File"

    def stat(self) -> Any:
        """Size and time of change, named as in `os.stat`."""
        if self.size is not None:
            return SimpleNamespace(st_size=self.size, st_mtime_ns=self.changed)
        with self._opened() as (system, path):
            info = system.get_file_info(path)
        if info.type.name == "NotFound":
            raise FileNotFoundError(2, "No such file", self.uri)
        return SimpleNamespace(st_size=info.size, st_mtime_ns=info.mtime_ns)

    def open(self, mode: str = "rb") -> Any:
        """A file to read bytes from, at any position."""
        with self._opened() as (system, path):
            return system.open_input_file(path)

    def read_bytes(self) -> bytes:
        """The whole file."""
        with self.open() as file:
            return bytes(file.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole file as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Write the whole file: in an object store it appears when it is complete."""
        with self._opened() as (system, path):
            if "/" in str(PurePosixPath(path).parent):  # a bucket is not ours to make
                system.create_dir(str(PurePosixPath(path).parent), recursive=True)
            with system.open_output_stream(path) as file:
                file.write(data)

    def files(self, *, recursive: bool = True) -> list[RemotePath]:
        """The files of this folder, sorted by path."""
        fs = import_extra("pyarrow.fs", "tables")
        with self._opened() as (system, path):
            listed = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
        found = sorted((one for one in listed if one.is_file), key=lambda one: str(one.path))
        depth = len(PurePosixPath(path).parts)
        names = ("/".join(PurePosixPath(one.path).parts[depth:]) for one in found)
        return [RemotePath((self / name).uri, one.size, one.mtime_ns) for name, one in zip(names, found, strict=True)]

    def _at(self, path: str) -> RemotePath:
        parts = urlsplit(self.uri)
        return RemotePath(_uri(parts.scheme, parts.netloc, path, parts.query))

    def _kind(self) -> str:
        with self._opened() as (system, path):
            return str(system.get_file_info(path).type.name)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path in it; its errors say what to look at."""
        parts = urlsplit(self.uri)
        system, prefix = _system(parts.scheme, parts.netloc, parts.query)
        try:
            yield system, prefix + parts.path.lstrip("/")
        except FileNotFoundError:  # stays that
            raise
        except OSError as error:
            said, unreachable = str(error), "check endpoint, region and network"
            remedy = next((remedy for word, remedy in REMEDIES.items() if word in said), unreachable)
            line = said.partition("\n")[0]
            raise StoreError(f"expected a store that serves {self.uri}, got {line}; {remedy}") from error


Location = Path | RemotePath
NO_RIGHTS = "check key and rights of this account"
REMEDIES = dict.fromkeys(("ACCESS_DENIED", "Access Denied", "INVALID_ACCESS_KEY", "status 403"), NO_RIGHTS)
REMEDIES |= {"Bucket '": "make the bucket, or check its name"}  # how pyarrow begins when it finds none


@contextmanager
def local_copy(place: Location) -> Iterator[Path]:
    """Yield a local path with the bytes of `place`."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / place.name
        copy.write_bytes(place.read_bytes())
        yield copy


@contextmanager
def local_draft(place: Location) -> Iterator[Path]:
    """Yield a local path; what was written to it is at `place` when the block ends well."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / place.name
        yield draft
        place.write_bytes(draft.read_bytes())


@lru_cache(maxsize=64)
def _system(scheme: str, netloc: str, query: str) -> tuple[Any, str]:
    """The file system of a URI and what its paths begin with; opened once, because that asks the network."""
    fs = import_extra("pyarrow.fs", "tables")
    root = _uri(scheme, netloc, "/x", query)
    try:
        system, path = fs.FileSystem.from_uri(root)
    except (ValueError, NotImplementedError):  # not one of pyarrow's own
        system, path = _from_fsspec(root)
        system = fs.PyFileSystem(fs.FSSpecHandler(system))
    return system, path.removesuffix("x")


def _uri(scheme: str, netloc: str, path: str, query: str) -> str:
    return f"{scheme}://{netloc}{path}" + (f"?{query}" if query else "")  # urlunsplit drops // before an empty host


def _from_fsspec(uri: str) -> tuple[Any, str]:
    try:
        core = importlib.import_module("fsspec.core")
        found: tuple[Any, str] = core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"expected a URI that pyarrow or fsspec can open, got {uri.rpartition('/')[0]} ({error}); "
            "install the driver of that store, for example s3fs, gcsfs or adlfs"
        ) from error
    return found
