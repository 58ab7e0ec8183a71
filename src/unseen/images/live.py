"""Pictures that come while one waits: of a camera, a stream, a video at its own pace, and a folder that grows."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from unseen.errors import DataError, import_extra
from unseen.images.decode import is_image_file
from unseen.images.entry import Entry, file_identity, key_of
from unseen.images.sources import find_images

CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}  # by system: driver and its address


def watch(source: str, *, every: float) -> Iterator[Entry]:
    """Yield the pictures of a camera (its number), an address, a video file or a folder, one in `every` seconds.

    Of a camera or an address the newest one counts, however long the caller takes. A folder is looked at every so
    often, and a file is read once it has stopped growing.
    """
    if Path(source).is_dir():
        return _growing(Path(source), every)
    if source.isdecimal() or "://" in source:
        return _newest(source, every)
    return _paced(source, every)


def _growing(folder: Path, every: float) -> Iterator[Entry]:
    seen: set[Path] = set()
    growing: dict[Path, str] = {}
    while True:
        there = {path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}
        for path in sorted(there - seen):
            identity = file_identity(path)
            if growing.get(path) != identity:
                growing[path] = identity
                continue
            seen.add(path)
            del growing[path]
            if is_image_file(path):
                yield from find_images(path)
        time.sleep(every)


def _paced(source: str, every: float) -> Iterator[Entry]:
    due = 0.0
    for frame in _frames(source):
        if (at := frame.time or 0.0) >= due:
            due = at + every
            yield _entry(f"{source}#{at:.1f}s", frame)


def _newest(source: str, every: float) -> Iterator[Entry]:
    newest: deque[Any] = deque(maxlen=1)
    errors: list[DataError] = []
    ended = threading.Event()

    def read() -> None:
        """Take every frame as it comes: what is not taken would be waited for, and be old."""
        try:
            for frame in _frames(source):
                newest.append(frame)
        except DataError as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=read, daemon=True).start()
    name, is_last = re.sub(r"//[^/@]*@", "//", source), False  # without a password
    while not is_last:
        is_last = ended.wait(every)
        if newest:
            yield _entry(f"{name}#{datetime.now().isoformat(timespec='milliseconds')}", newest.pop())
    if errors:
        raise errors[0]


def _frames(source: str) -> Iterator[Any]:
    av = import_extra("av", "video")
    driver, address = CAMERAS.get(sys.platform, ("", "{}")) if source.isdecimal() else (None, source)
    try:
        with av.open(address.format(source), format=driver, timeout=(20, 60)) as video:
            yield from video.decode(video=0)
    except (av.error.FFmpegError, IndexError, OSError, ValueError) as error:
        remedy = "pass the number of a camera, an address, a video file or a folder"
        raise DataError(f"expected something to watch, got {error} for {source}; {remedy}") from error


def _entry(name: str, frame: Any) -> Entry:
    return Entry(key_of(name), "", frame.to_image)
