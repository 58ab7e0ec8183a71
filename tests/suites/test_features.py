import json

import pytest
import torch
from safetensors.torch import save_file

from unseen.errors import DataError
from unseen.suites import FeatureSet


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a features file and returns its path."""

    def write(metadata=None, **tensors):
        path = tmp_path / "cats.safetensors"
        save_file(tensors, path, metadata=metadata)
        return path

    return write


def test_reads_features_labels_classes_and_encoder(written):
    metadata = {"classes": json.dumps(["tabby", "lynx"]), "encoder": "toy"}
    path = written(metadata, features=torch.eye(3).half(), labels=torch.tensor([0, 1, 1], dtype=torch.int32))
    cats = FeatureSet.load(path)
    assert (cats.name, cats.classes, cats.encoder, len(cats)) == ("cats", ("tabby", "lynx"), "toy", 3)
    assert cats.z.dtype == torch.float32
    assert torch.equal(cats.z, torch.eye(3))
    assert cats.labels is not None
    assert cats.labels.dtype == torch.int64
    assert cats.labels.tolist() == [0, 1, 1]


def test_labels_and_metadata_are_optional(written):
    cats = FeatureSet.load(written(features=torch.eye(2)))
    assert (cats.labels, cats.classes, cats.encoder) == (None, (), "")
    assert FeatureSet.load(written({"names": '["a", "b"]'}, features=torch.eye(2))).classes == ("a", "b")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"z": torch.eye(2)}, "tensor `features`"),
        ({"features": torch.ones(4)}, r"shape \[n, d\].*\[4\]"),
        ({"features": torch.ones(2, 2, dtype=torch.int64)}, "floating-point.*int64"),
        ({"features": torch.tensor([[1.0, 0.0], [float("nan"), 0.0]])}, "NaN or infinity in row 1"),
        ({"features": torch.eye(2), "labels": torch.zeros(3, dtype=torch.int64)}, r"one integer label per row.*\[3\]"),
        ({"features": torch.eye(2), "labels": torch.zeros(2)}, "one integer label per row.*float32"),
        ({"features": torch.eye(2), "labels": torch.tensor([0, 2])}, "labels from 0 to 1.*0 to 2"),
    ],
)
def test_bad_tensors_are_refused(written, tensors, message):
    with pytest.raises(DataError, match=message):
        FeatureSet.load(written({"classes": '["a", "b"]'}, **tensors))


@pytest.mark.parametrize("classes", ["[1, 2]", '"ab"', "[", "{}"])
def test_bad_classes_are_refused(written, classes):
    with pytest.raises(DataError, match="JSON list of strings"):
        FeatureSet.load(written({"classes": classes}, features=torch.eye(2)))


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no file at"):
        FeatureSet.load(tmp_path / "none.safetensors")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"not a tensor")
    with pytest.raises(DataError, match="damaged"):
        FeatureSet.load(torn)


@pytest.mark.data
def test_reads_the_shared_features(features):
    images = FeatureSet.load(features / "images-textures10.safetensors")
    assert images.z.shape == (1200, 512)
    assert len(images.classes) == 10
    assert images.encoder.startswith("openai/clip-vit-base-patch16")
    assert len(FeatureSet.load(features / "text-imagenet1k.safetensors").classes) == 1000
