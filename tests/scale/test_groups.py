from __future__ import annotations

import pytest

from unseen import keyed
from unseen.scale.score import grouped


@pytest.mark.parametrize("samples", [0, 1, 7, 1000])
def test_groups_hold_every_stream_once_and_enough_samples(samples: int) -> None:
    streams = keyed.split([f"key {number * number % 37}" for number in range(500)])
    groups = grouped(streams, samples)
    assert sorted(stream.key for group in groups for stream in group) == sorted(stream.key for stream in streams)
    sizes = [sum(len(stream.rows) for stream in group) for group in groups]
    assert all(size >= samples for size in sizes[:-1])


def test_a_long_stream_is_a_group_of_its_own() -> None:
    streams = keyed.split(["long"] * 50 + ["a", "b", "c"])
    assert [[stream.key for stream in group] for group in grouped(streams, 10)] == [["long"], ["a", "b", "c"]]
