"""Thumbnails of the latest samples, in memory only."""

from collections import OrderedDict
from collections.abc import Sequence

from unseen.errors import ServiceError

KEPT = 256


class Thumbnails:
    """Small JPEGs by sequence number; the oldest make room."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def add(self, first: int, thumbnails: Sequence[bytes]) -> None:
        """Keep the thumbnails of consecutive samples."""
        self._kept.update(enumerate(thumbnails, first))
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def __getitem__(self, seq: int) -> bytes:
        if seq not in self._kept:
            raise ServiceError(404, f"expected one of the latest {self._most} thumbnails, got {seq}; it is not kept")
        return self._kept[seq]

    def __contains__(self, seq: object) -> bool:
        return seq in self._kept
