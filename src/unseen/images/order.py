"""Put images into the order in which a stream should meet them."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from unseen.errors import SettingError, check_choice
from unseen.images.decode import FORMATS
from unseen.images.entry import Entry

EXIF_IFD, DATE_TIME_ORIGINAL = 0x8769, 0x9003  # where camera data lie, and when the picture was taken


def sort_entries(entries: Iterable[Entry], order: str = "name") -> Iterable[Entry]:
    """The entries by `name` (as found), by `time`, or `shuffled`, the same way every time."""
    check_choice("an order", order, ORDERS)
    if order == "name":
        return entries
    if not isinstance(entries, Sequence):
        raise SettingError(f"expected --order name for a video, got {order}; its frames come in their own order")
    return ORDERS[order](entries)


def by_time(entries: Sequence[Entry]) -> list[Entry]:
    """The oldest first: when the camera says it was taken, else when the file was last changed."""
    return sorted(entries, key=lambda entry: capture_time(Path(entry.path)))


def shuffle(entries: Sequence[Entry]) -> list[Entry]:
    """A random order that depends on nothing but the number of entries."""
    return random.Random(0).sample(entries, len(entries))


def capture_time(path: Path) -> float:
    """When a picture was taken, in seconds; a picture inside an archive is as old as the archive."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return _camera_time(path)
    except (OSError, ValueError, KeyError, TypeError, SyntaxError):  # no picture, no EXIF, or not a date
        return path.stat().st_mtime


def _camera_time(path: Path) -> float:
    from PIL import Image

    with Image.open(path, formats=FORMATS) as picture:
        written = str(picture.getexif().get_ifd(EXIF_IFD)[DATE_TIME_ORIGINAL])
    return datetime.strptime(written, "%Y:%m:%d %H:%M:%S").timestamp()


ORDERS: Mapping[str, Callable[[Sequence[Entry]], list[Entry]]] = {"name": list, "time": by_time, "shuffled": shuffle}
