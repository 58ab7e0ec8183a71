"""GPU actors without a GPU: batches by the memory of the device, a cluster that has none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from unseen.errors import SettingError
from unseen.scale.encode import DecodedAhead, EncodeJob, EncoderActor, plan


class SmallMemory:
    """A model on a device that holds so many images at once."""

    def __init__(self, most: int) -> None:
        self.most = most

    def vectors(self, pixels: Tensor) -> Tensor:
        if len(pixels) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return pixels.float() * 2


def actor(most: int) -> EncoderActor:
    found = EncoderActor(EncodeJob("small", "cpu", batch=16), Path(), "")
    found.model = SmallMemory(most)  # type: ignore[assignment]
    return found


def test_a_batch_that_does_not_fit_is_halved_and_stays_so() -> None:
    small, pixels = actor(5), torch.arange(40).reshape(20, 2)
    assert torch.equal(small.vectors(pixels), pixels.float() * 2)
    assert small.batch == 4


def test_one_image_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        actor(0).vectors(torch.zeros(3, 2))


def test_a_cluster_without_a_gpu_says_so_instead_of_waiting_for_one(tmp_path: Path) -> None:
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0})
    with pytest.raises(SettingError, match=r"expected a node with a GPU, of which every model gets one"):
        plan(ray, ["photos"], tmp_path, EncodeJob("offline", "cuda"))
    assert not list(tmp_path.iterdir())


def test_shards_are_decoded_ahead_of_the_actors_once_each_and_anew_after_a_death() -> None:
    begun: list[str] = []

    def decode(name: str) -> str:
        begun.append(name)
        return f"{name}, try {begun.count(name)}"

    shards = DecodedAhead(decode, "abcdef", ahead=2)
    assert shards.take("a") == "a, try 1"
    assert begun == ["a", "b", "c"]
    assert [shards.take(name) for name in "bc"] == ["b, try 1", "c, try 1"]
    assert shards.take("a") == "a, try 2"  # whoever had it died
    assert [shards.take(name) for name in "def"] == ["d, try 1", "e, try 1", "f, try 1"]
    assert sorted(begun) == list("aabcdef")


def test_without_a_gpu_no_shard_is_decoded_before_an_actor_has_room() -> None:
    begun: list[str] = []
    shards = DecodedAhead(begun.append, "abc", ahead=0)
    for number, name in enumerate("abc", 1):
        shards.take(name)
        assert begun == list("abc")[:number]
