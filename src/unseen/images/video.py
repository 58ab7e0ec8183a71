"""Frames of a video, in their own order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from unseen.errors import DataError, import_extra
from unseen.images.entry import Entry, file_identity
from unseen.storage.remote import Location, RemotePath

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def video_entries(path: Location, stride: int) -> Iterator[Entry]:
    """Yield every `stride`-th frame of a video, decoded while the caller reads."""
    if isinstance(path, RemotePath):
        raise DataError(f"expected a video on this machine, got {path}; copy it here first")
    av = import_extra("av", "video")
    try:
        with av.open(str(path)) as video:
            for number, frame in enumerate(islice(video.decode(video=0), 0, None, stride)):
                index = number * stride
                yield Entry(f"{path}#{index}", file_identity(path, index), partial(_decoded_frame, frame.to_image()))
    except (av.error.FFmpegError, IndexError) as error:
        raise DataError(f"expected a video, got {error} in {path}; check that it plays") from error


def _decoded_frame(picture: Picture) -> Picture:
    return picture
