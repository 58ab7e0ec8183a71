"""Thumbnails of recent samples."""

from __future__ import annotations

from unseen.serve.stream.history import RecentItems


def test_thumbnails_drop_the_oldest_beyond_their_limit():
    kept = RecentItems[bytes](3, 100)
    kept.add(0, [b"a", b"b"])
    kept.add(2, [b"c", b"d"])
    assert [seq in kept for seq in range(4)] == [False, True, True, True]


def test_what_comes_with_samples_is_bounded_by_its_size_too():
    kept = RecentItems[str | None](100, 10)
    kept.add(0, ["x" * 6, None, "y" * 4])
    assert [seq in kept for seq in range(3)] == [True, True, True]
    kept.add(3, ["z" * 5])
    assert [seq in kept for seq in range(4)] == [False, True, True, True]
    kept.add(4, ["w" * 20])
    assert kept.get(4) is None
