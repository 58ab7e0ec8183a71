"""Read pictures from folders, globs, lists, tars, tables and videos; what cannot be read is reported, not replaced."""

from __future__ import annotations

import glob
import io
import os
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, overload

from unseen.errors import DataError, ImageError, MissingExtra, SettingError
from unseen.storage.remote import Location, Remote, location

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Source = str | Path | Sequence[str | Path]

PICTURES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".webp",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".jp2",
        ".avif",
    }
)
VIDEOS = frozenset([".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg"])
LISTS = frozenset({".txt", ".lst"})
ARCHIVES = frozenset({".tar", ".parquet"})
MAX_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb
WORKERS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, eq=False)
class Image:
    """One picture, upright, in RGB."""

    path: str
    pixels: Picture
    label: str | None = None
    identity: str = ""


@dataclass(frozen=True)
class Skipped:
    """One picture that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Batch(Sequence[Image]):
    """The readable images of a batch as a sequence; `rows` holds the skipped ones too, in order of arrival."""

    rows: tuple[Image | Skipped, ...]

    @property
    def images(self) -> tuple[Image, ...]:
        """Return the readable ones."""
        return tuple(row for row in self.rows if isinstance(row, Image))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Return the unreadable ones."""
        return tuple(row for row in self.rows if isinstance(row, Skipped))

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Image, ...]: ...
    def __getitem__(self, index: int | slice) -> Image | tuple[Image, ...]:
        return self.images[index]


@dataclass(frozen=True)
class Entry:
    """A picture that has been found but not decoded; `identity` changes when the file does."""

    path: str
    identity: str
    decode: Callable[[], Picture]
    label: str | None = None

    def read(self) -> Image | Skipped:
        """Return the decoded picture, or the reason why there is none."""
        try:
            return Image(self.path, self.decode(), self.label, self.identity)
        except ImageError as error:
            return Skipped(self.path, str(error))


def read_images(source: Source, *, size: int = 64, root: str | Path | None = None, stride: int = 1) -> Iterator[Batch]:
    """Yield batches of `size` pictures in order, decoded by threads while the caller works on the batch before.

    `root` is the folder that relative paths of an image list start from (default: the list's own folder); `stride`
    takes every n-th frame of a video.
    """
    return read_entries(find_images(source, root=root, stride=stride), size=size)


def read_entries(entries: Iterable[Entry], *, size: int = 64) -> Iterator[Batch]:
    """Yield batches of pictures that `find_images` found."""
    if size < 1:
        raise SettingError(f"expected a batch size of at least 1, got {size}; try 64")
    rows = _decoded(entries)
    while batch := tuple(islice(rows, size)):
        yield Batch(batch)


def find_images(source: Source, *, root: str | Path | None = None, stride: int = 1) -> Iterable[Entry]:
    """Return the pictures of a source without decoding them: a list, or an iterator where a video is among them."""
    sources = [source] if isinstance(source, str | Path) else list(source)
    if stride < 1:
        raise SettingError(f"expected a stride of at least 1, got {stride}; 1 takes every frame")
    paths = [path for one in sources for path in _expand(one)]
    if any(path.suffix.lower() in VIDEOS for path in paths):
        return (entry for path in paths for entry in _entries(path, root, stride))
    entries = [entry for path in paths for entry in _entries(path, root, stride)]
    if not entries:
        named = ", ".join(map(str, sources)) or "no source"
        raise DataError(f"expected at least one image, got none in {named}; supported: {' '.join(sorted(PICTURES))}")
    return entries


def decode(data: bytes) -> Picture:
    """Return the picture in `data`: first frame, upright, RGB, transparency on white, 16 bits scaled to 8."""
    pillow = _pillow()
    if not data:
        raise ImageError("empty file")
    try:
        with pillow.open(io.BytesIO(data)) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise ImageError(
                    f"too large: {picture.width} x {picture.height} pixels, at most {MAX_PIXELS:,} allowed"
                )
            picture.load()
            return _rgb(_upright(picture))
    except ImageError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"too large: {error}") from error
    except pillow.UnidentifiedImageError as error:
        raise ImageError("not an image Pillow can read") from error
    except Exception as error:  # Pillow's parsers raise whatever bad bytes lead them to
        raise ImageError(f"damaged: {error or type(error).__name__}") from error


def _rgb(picture: Picture) -> Picture:
    if picture.mode.startswith("I"):
        return _from_sixteen_bits(picture).convert("RGB")
    if picture.mode == "F":
        raise ImageError("floating-point pixels have no agreed range; save it with 8 or 16 bits")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        paper = _pillow().new("RGBA", layer.size, "white")
        flat: Picture = _pillow().alpha_composite(paper, layer)
        return flat.convert("RGB")
    return picture.convert("RGB")


def _from_sixteen_bits(picture: Picture) -> Picture:
    import numpy as np

    # Pillow's own conversion clips at 255, which turns most 16-bit pictures white
    values = np.asarray(picture).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ImageError(f"32-bit pixels have no agreed range (here {values.min()} to {values.max()}); save it with 16")
    scaled: Picture = _pillow().fromarray(((values + 128) // 257).astype(np.uint8))
    return scaled


def _upright(picture: Picture) -> Picture:
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def _pillow() -> ModuleType:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra("pillow", "encode") from error
    return PIL.Image


def _decoded(entries: Iterable[Entry]) -> Iterator[Image | Skipped]:
    waiting: deque[Future[Image | Skipped]] = deque()
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="decode")
    try:
        for entry in entries:
            waiting.append(pool.submit(entry.read))
            if len(waiting) > 4 * WORKERS:  # far enough ahead to keep the threads busy, not to fill the memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _expand(source: str | Path) -> list[Location]:
    path = location(source)
    if path.exists():
        return _walk(path) if path.is_dir() else [path]
    if isinstance(path, Path) and glob.has_magic(str(source)):
        found = [Path(name) for name in sorted(glob.glob(str(source), recursive=True))]
        return [inner for one in found for inner in (_walk(one) if one.is_dir() else [one])]
    raise DataError(f"expected a folder, file or glob of images, got nothing at {source}; check the path")


def _walk(folder: Location) -> list[Location]:
    """Return the pictures of a folder; of one that has none, the archives."""
    paths: Sequence[Location] = folder.files() if isinstance(folder, Remote) else _local_files(folder)
    shown = [path for path in paths if not path.name.startswith(".")]
    pictures = [path for path in shown if path.suffix.lower() in PICTURES]
    return pictures or [path for path in shown if path.suffix.lower() in ARCHIVES]


def _local_files(folder: Path) -> list[Path]:
    return sorted(Path(base) / name for base, _, names in os.walk(folder) for name in names)


def _entries(path: Location, root: str | Path | None, stride: int) -> Iterator[Entry]:
    suffix = path.suffix.lower()
    if suffix in VIDEOS:
        yield from _video_entries(path, stride)
    elif suffix in LISTS:
        yield from _list_entries(path, location(root) if root else path.parent)
    elif suffix == ".tar":
        yield from _tar_entries(path)
    elif suffix == ".parquet":
        yield from _table_entries(path)
    elif suffix in {".tgz", ".gz", ".zip"}:
        raise DataError(f"expected an uncompressed .tar, got {path.name}; unpack it first: images hardly compress")
    else:
        yield _file_entry(path)


def _file_entry(path: Location, label: str | None = None) -> Entry:
    # absolute, because another process may read it from another working folder
    return Entry(str(path), _identity(path), partial(_decode_file, path.absolute()), label)


def _decode_file(path: Location) -> Picture:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ImageError(f"cannot be opened: {error.strerror or error}") from error
    return decode(data)


def _identity(path: Location, *inside: int) -> str:
    try:
        stat = path.stat()
    except OSError:
        return "missing"
    return ":".join(map(str, (stat.st_size, stat.st_mtime_ns, *inside)))


def _list_entries(path: Location, root: Location) -> Iterator[Entry]:
    """Read OpenOOD's format, one `path label` a line; the label may be missing, the path may hold spaces."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"expected an image list in UTF-8, got other bytes in {path}; save it as UTF-8") from error
    for line in filter(None, map(str.strip, lines)):
        name, _, label = line.rpartition(" ")
        is_label = bool(name) and label.lstrip("-").isdigit()
        where = name.strip() if is_label else line
        yield _file_entry(location(where) if "://" in where else root / where, label if is_label else None)


def _tar_entries(path: Location) -> Iterator[Entry]:
    """Read a webdataset shard: pictures and, under the same key, their label as .cls or .txt."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as shard:
            members = [member for member in shard if member.isfile()]
            labels = {_key(m): _text(shard, m) for m in members if m.name.endswith((".txt", ".cls"))}
    except tarfile.TarError as error:
        raise DataError(f"expected a tar of images, got {error} in {path}; download it again") from error
    archive = path.absolute()
    for member in members:
        if Path(member.name).suffix.lower() in PICTURES:
            identity = _identity(path, member.offset_data, member.size)
            read = partial(_decode_range, archive, member.offset_data, member.size)
            yield Entry(f"{path}/{member.name}", identity, read, labels.get(_key(member)))


def _key(member: tarfile.TarInfo) -> str:
    folder, _, name = member.name.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _text(shard: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = shard.extractfile(member)
    return file.read().decode("utf-8", "replace").strip() if file else ""


def _decode_range(path: Location, offset: int, size: int) -> Picture:
    # by offset, so that threads need not share one position in the archive
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) < size:
        raise ImageError(f"damaged: archive ends {size - len(data)} bytes too early")
    return decode(data)


def _table_entries(path: Location) -> Iterator[Entry]:
    """Read a Parquet file with a column of encoded pictures and perhaps one of labels."""
    from unseen.images import table as parquet

    identity, where = _identity(path), str(path.absolute())
    column, cells = parquet.cells(path)
    for row, cell in enumerate(cells):
        read = partial(_decode_cell, where, identity, column, cell.group, cell.offset)
        yield Entry(f"{path}#{row}", f"{identity}:{row}", read, cell.label)


def _decode_cell(path: str, identity: str, column: str, group: int, offset: int) -> Picture:
    from unseen.images import table as parquet

    return decode(parquet.cell_bytes(path, identity, column, group, offset))


def _video_entries(path: Location, stride: int) -> Iterator[Entry]:
    if isinstance(path, Remote):
        raise DataError(f"expected a video on this machine, got {path}; copy it here first")
    try:
        import av
    except ImportError as error:
        raise MissingExtra("av", "video") from error
    try:
        with av.open(str(path)) as video:
            for number, frame in enumerate(islice(video.decode(video=0), 0, None, stride)):
                index = number * stride
                yield Entry(f"{path}#{index}", _identity(path, index), partial(_same, frame.to_image()))
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(f"expected a video, got {error} in {path}; check that it plays") from error


def _same(picture: Picture) -> Picture:
    return picture
