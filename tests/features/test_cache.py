"""Features on disk: resumable, safe under two writers, never mixed between models."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image as Pillow
from safetensors.torch import save_file

from helpers.tiny_models import ColourEncoder
from unseen.errors import DataError, EncoderError
from unseen.features import FeatureCache, encode_images, load_features
from unseen.images import find_images

VERSION_0_1 = Path(__file__).parents[1] / "data/v0.1"


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(10):
        Pillow.new("RGB", (4, 4), (20 * i, 100, 50)).save(folder / f"{i}.png")
    return folder


def encode(photos, folder, encoder=None, size=3):
    encoder = encoder or ColourEncoder()
    list(encode_images(find_images(photos), encoder, FeatureCache(folder, encoder), size=size))
    return encoder


def test_a_killed_run_goes_on_where_it_stopped(photos, tmp_path):
    whole = load_features((encode(photos, tmp_path / "whole"), tmp_path / "whole")[1])
    encoder = ColourEncoder()
    run = encode_images(find_images(photos), encoder, FeatureCache(tmp_path / "f", encoder), size=3)
    next(run)
    next(run)
    (tmp_path / "f" / ".0123.safetensors.tmp").write_bytes(b"what a killed writer leaves behind")
    del run
    assert encode(photos, tmp_path / "f").calls == 4
    resumed = load_features(tmp_path / "f")
    assert resumed.keys == whole.keys
    assert torch.equal(resumed.z, whole.z)


def test_a_changed_file_is_encoded_again_in_its_place(photos, tmp_path):
    encode(photos, tmp_path / "f")
    Pillow.new("RGB", (4, 4), (255, 255, 255)).save(photos / "4.png")
    os.utime(photos / "4.png", ns=(1, 1))
    assert encode(photos, tmp_path / "f").calls == 1
    features = load_features(tmp_path / "f")
    assert features.keys[4].endswith("4.png")
    torch.testing.assert_close(features.z[4], torch.ones(3) / 3**0.5)


def test_two_writers_lose_nothing(photos, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: encode(photos, tmp_path / "f", size=1), range(2)))
    features = load_features(tmp_path / "f")
    assert sorted(features.keys) == sorted(str(photos / f"{i}.png") for i in range(10))
    assert not [path for path in (tmp_path / "f").iterdir() if path.name.startswith(".")]


def test_two_shards_of_the_same_instant_are_both_kept(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: 1)
    encode(photos, tmp_path / "f", size=1)
    assert len(load_features(tmp_path / "f")) == 10


def test_a_cache_of_another_model_is_refused(photos, tmp_path):
    encode(photos, tmp_path / "f")
    with pytest.raises(EncoderError, match=r"expected a cache of colour \(beef.*, got one of colour \(c010"):
        FeatureCache(tmp_path / "f", ColourEncoder("beef" * 16))


def test_a_folder_of_other_files_is_not_taken_over(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"expected an empty folder or one with a manifest\.json"):
        FeatureCache(tmp_path, ColourEncoder())


def test_a_damaged_shard_is_named(photos, tmp_path):
    encode(photos, tmp_path / "f")
    shard = sorted((tmp_path / "f").glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-3] + b"xyz")
    with pytest.raises(DataError, match=f"delete {shard.name} and run unseen encode again"):
        load_features(tmp_path / "f")


@pytest.mark.parametrize("text", ["{", '{"kind": "other"}'])
def test_a_folder_without_a_manifest_of_ours_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="expected"):
        load_features(tmp_path)


def test_an_empty_cache_is_refused(tmp_path):
    FeatureCache(tmp_path, ColourEncoder())
    with pytest.raises(DataError, match="expected at least one shard"):
        load_features(tmp_path)


@pytest.mark.parametrize(
    ("labels", "numbers", "classes"),
    [(("3", "-1"), [3, -1], ()), (("dog", "cat"), [1, 0], ("cat", "dog"))],
)
def test_labels_become_numbers(photos, tmp_path, labels, numbers, classes):
    named = [replace(entry, label=label) for entry, label in zip(find_images(photos), labels, strict=False)]
    encoder = ColourEncoder()
    list(encode_images(named, encoder, FeatureCache(tmp_path / "f", encoder)))
    features = load_features(tmp_path / "f")
    assert features.labels.tolist() == numbers
    assert features.classes == classes


def test_a_feature_folder_of_version_0_1_is_read():
    features = load_features(VERSION_0_1 / "features")
    assert features.keys == ("photos/0.png", "photos/1.png", "photos/2.png")
    expected = torch.tensor([[11.0, 101.0, 51.0], [31.0, 101.0, 51.0], [51.0, 101.0, 51.0]])
    torch.testing.assert_close(features.z, torch.nn.functional.normalize(expected, dim=-1))
