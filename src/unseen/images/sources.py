"""Find images in folders, globs, lists, archives, tables and videos, and decode them in batches.

What cannot be read is reported in its place, never replaced.
"""

import glob
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from unseen.errors import DataError, MissingExtra, SettingError
from unseen.images.archives import LANCE, TABLE_SUFFIXES, table_entries, tar_entries, video_entries
from unseen.images.decode import IMAGE_SUFFIXES, is_image_file, read_file
from unseen.images.entry import Batch, Entry, file_identity, key_of
from unseen.storage.remote import Location, RemotePath, location

Source = str | Path | Iterable[Any]  # where images lie, or images as `images.inputs` takes them

VIDEO_SUFFIXES = frozenset({".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg"})
LIST_SUFFIXES = frozenset({".txt", ".lst"})
ARCHIVE_SUFFIXES = TABLE_SUFFIXES | {".tar"}
COMPRESSED_SUFFIXES = frozenset({".tgz", ".gz", ".zip"})
NOT_PICTURES = VIDEO_SUFFIXES | LIST_SUFFIXES | ARCHIVE_SUFFIXES | COMPRESSED_SUFFIXES
WEB = ("http://", "https://")  # a page is no folder, even where a single file could be read
WORKERS = min(8, os.cpu_count() or 1)

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_images(source: Source, *, size: int = 64, root: str | Path | None = None, stride: int = 1) -> Iterator[Batch]:
    """Yield batches of `size` pictures in order, decoded by threads while the caller works on the batch before.

    `root` is the folder that relative paths of an image list start from (default: the list's own folder); `stride`
    takes every n-th frame of a video. Images that you hold may stand for paths: bytes, Pillow, numpy, torch, rows of a
    data set; an iterator of them is read as the caller goes on.

    >>> import numpy as np
    >>> batch, = read_images([np.zeros((8, 8, 3), np.uint8), b"no image"])
    >>> len(batch), batch.images[0].pixels.size, len(batch.skipped)
    (1, (8, 8), 1)
    """
    return read_entries(find_images(source, root=root, stride=stride), size=size)


def read_entries(entries: Iterable[Entry], *, size: int = 64) -> Iterator[Batch]:
    """Yield batches of pictures that `find_images` found."""
    # far enough ahead to keep the threads busy, not to fill the memory
    rows = prefetch(Entry.read, entries, workers=WORKERS, most=4 * WORKERS, name="decode")
    for batch in in_lists(rows, size):
        yield Batch(tuple(batch))


def find_images(source: Source, *, root: str | Path | None = None, stride: int = 1) -> Iterable[Entry]:
    """The pictures of a source without decoding them: a list, or an iterator where a video is among them.

    Files of a folder are pictures by name, or by content where the name does not say; a list counts the others.
    """
    if stride < 1:
        raise SettingError(f"expected a stride of at least 1, got {stride}; 1 takes every frame")
    sources = [source] if isinstance(source, str | Path) else source
    if not isinstance(sources, list | tuple) or not all(isinstance(one, str | Path) for one in sources):
        return _in_memory_entries(sources, root, stride)
    found = [_expand(one) for one in sources]
    paths = [path for one in found for path in one.paths]
    if any(path.suffix.lower() in VIDEO_SUFFIXES for path in paths):
        return (entry for path in paths for entry in _entries(path, root, stride))
    lean: list[str | Entry] = []
    for path in paths:
        is_picture = isinstance(path, Path) and path.suffix.lower() not in NOT_PICTURES
        lean += [str(path)] if is_picture else _entries(path, root, stride)
    entries = FoundEntries(lean, sum(one.others for one in found))
    if not entries:
        named = ", ".join(map(str, sources)) or "no source"
        raise DataError(
            f"expected at least one image, got none in {named}; supported: {' '.join(sorted(IMAGE_SUFFIXES))}"
        )
    return entries


def _in_memory_entries(sources: Iterable[Any], root: str | Path | None, stride: int) -> Iterator[Entry]:
    """Yield pictures that the caller holds, and those of paths among them, as they come."""
    from unseen.images.inputs import in_memory_entry, split  # late: it imports torch, and most sources are paths

    for number, one in enumerate(split(sources)):
        if isinstance(one, str | Path):
            yield from (entry for path in _expand(one).paths for entry in _entries(path, root, stride))
        else:
            yield in_memory_entry(number, one)


@dataclass(frozen=True)
class FoundEntries(Sequence[Entry]):
    """Pictures that were found, and how many other files lie in the same folders.

    Of a file only the path is held, some hundred bytes: a folder may have millions of them.
    """

    found: list[str | Entry]
    others: int = 0

    @property
    def keys(self) -> Iterator[str]:
        """What the pictures are called, without a look at the files."""
        return (key_of(one) if isinstance(one, str) else one.path for one in self.found)

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        found = self.found[index]
        return _file_entry(found) if isinstance(found, str) else found


class FoundPaths(NamedTuple):
    """Files to read, and how many of the same folders are not images."""

    paths: Sequence[Location]
    others: int = 0


def _expand(source: str | Path) -> FoundPaths:
    path, is_page = location(source), str(source).startswith(WEB)
    try:
        is_there = path.exists()
    except (MissingExtra, DataError):  # a driver for object stores would not make a folder of a page
        if not is_page:
            raise
        is_there = False
    if is_there:
        return _walk(path) if path.is_dir() and path.suffix != LANCE else FoundPaths([path])
    if isinstance(path, Path) and glob.has_magic(str(source)):
        found = [Path(name) for name in sorted(glob.glob(str(source), recursive=True))]
        parts = [_walk(one) if one.is_dir() else FoundPaths([one]) for one in found]
        return FoundPaths([path for part in parts for path in part.paths], sum(part.others for part in parts))
    remedy = "download the images first" if is_page else "check the path"
    raise DataError(f"expected a folder, file or glob of images, got nothing at {source}; {remedy}")


def _walk(folder: Location) -> FoundPaths:
    """The pictures of a folder; of one that has none, the archives."""
    paths: Sequence[Location] = folder.files() if isinstance(folder, RemotePath) else _local_files(folder)
    shown = [path for path in paths if not path.name.startswith(".")]
    chosen = [path for path in shown if _is_picture(path)]
    chosen = chosen or [path for path in shown if path.suffix.lower() in ARCHIVE_SUFFIXES]
    return FoundPaths(chosen, len(shown) - len(chosen))


def _is_picture(path: Location) -> bool:
    """Whether a file is to be read, a remote one by its name; a closed folder is, so that it is reported."""
    if isinstance(path, Path):
        return is_image_file(path) or path.is_dir()
    return path.suffix.lower() in IMAGE_SUFFIXES


def _local_files(folder: Path) -> list[Path]:
    """The files below a folder, and the folders that cannot be opened; links lead to each folder once."""
    found: list[Path] = []
    entered: set[tuple[int, int]] = set()
    walk = os.walk(folder, followlinks=True, onerror=lambda error: found.append(Path(error.filename)))
    for base, folders, names in walk:
        # of two ways to one folder, always the same one; hidden ones hold thumbnails and what was deleted
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        place = os.stat(base)
        if (place.st_dev, place.st_ino) in entered:
            folders.clear()
            continue
        entered.add((place.st_dev, place.st_ino))
        found += [Path(base) / name for name in names]
    return sorted(found)


def _entries(path: Location, root: str | Path | None, stride: int) -> Iterator[Entry]:
    suffix = path.suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        yield from video_entries(path, stride)
    elif suffix in LIST_SUFFIXES:
        yield from _list_entries(path, location(root) if root else path.parent)
    elif suffix == ".tar":
        yield from tar_entries(path)
    elif suffix in TABLE_SUFFIXES:
        yield from table_entries(path)
    elif suffix in COMPRESSED_SUFFIXES:
        raise DataError(f"expected an uncompressed .tar, got {path.name}; unpack it first: images hardly compress")
    else:
        yield _file_entry(path)


def _file_entry(path: Location | str, label: str | None = None) -> Entry:
    # absolute, because another process may read it from another working folder
    place = os.path.join(os.getcwd(), path) if isinstance(path, str | Path) else path
    return Entry(key_of(path), file_identity(path), label=label, data=partial(read_file, place))


def _list_entries(path: Location, root: Location) -> Iterator[Entry]:
    """Read OpenOOD's format, one `path label` a line; the label may be missing, the path may hold spaces."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"expected an image list in UTF-8, got other bytes in {path}; save it as UTF-8") from error
    found: list[tuple[Location, str | None]] = []
    for line in filter(None, map(str.strip, lines)):
        name, _, label = line.rpartition(" ")
        is_label = bool(name) and label.lstrip("-").isdigit()
        where = name.strip() if is_label else line
        found.append((location(where) if "://" in where else root / where, label if is_label else None))
    kinds = (
        not isinstance(one, Path) or one.suffix.lower() in IMAGE_SUFFIXES or os.path.exists(one) for one, _ in found
    )
    if found and not any(kinds):
        raise DataError(
            f"expected an image list, a path a line, got no path of an image in {path} (first: {found[0][0].name!r}); "
            f"pass names of classes as --labels {path}"
        )
    yield from (_file_entry(where, label) for where, label in found)


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int, most: int, name: str
) -> Generator[Result, None, None]:
    """Yield `work` of each item in order; at most `most` items beyond the one that is waited for have been begun."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_lists(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of `size`, the last one perhaps shorter.

    >>> list(in_lists("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    if size < 1:
        raise SettingError(f"expected a batch size of at least 1, got {size}; try 64")
    source = iter(items)
    while some := list(islice(source, size)):
        yield some


def usable_cores() -> int:
    """How many cores this process may use, which in a container may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
