"""Thumbnails of recent samples."""

from __future__ import annotations

from unseen.serve.stream.history import RecentItems


def test_thumbnails_drop_the_oldest_beyond_their_limit():
    kept = RecentItems[bytes](3)
    kept.add(0, [b"a", b"b"])
    kept.add(2, [b"c", b"d"])
    assert [seq in kept for seq in range(4)] == [False, True, True, True]
