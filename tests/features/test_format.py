"""Single files of features: what they may hold, and how a bad one is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from unseen.errors import DataError
from unseen.features import load_features


@pytest.fixture
def written(tmp_path):
    """A function that writes a features file and returns its path."""

    def write(metadata=None, **tensors):
        path = tmp_path / "cats.safetensors"
        save_file(tensors, path, metadata=metadata)
        return path

    return write


def test_features_labels_classes_and_encoder_are_read(written):
    metadata = {"classes": json.dumps(["tabby", "lynx"]), "encoder": "toy"}
    path = written(metadata, features=torch.eye(3).half(), labels=torch.tensor([0, 1, 1], dtype=torch.int32))
    cats = load_features(path)
    assert (cats.name, cats.classes, cats.encoder, len(cats)) == ("cats", ("tabby", "lynx"), "toy", 3)
    assert cats.z.dtype == torch.float32
    assert torch.equal(cats.z, torch.eye(3))
    assert cats.true_labels.dtype == torch.int64
    assert cats.true_labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ["features", "z"])
def test_vectors_are_made_unit_unless_asked_for_as_stored(written, name):
    path = written({"names": json.dumps(["one", "two"])}, **{name: torch.tensor([[3.0, 4.0], [0.0, 2.0]])})
    assert load_features(path).keys == ("one", "two")
    torch.testing.assert_close(load_features(path).z, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert load_features(path, unit=False).z.tolist() == [[3.0, 4.0], [0.0, 2.0]]


def test_labels_and_metadata_are_optional(written):
    cats = load_features(written(features=torch.eye(2)))
    assert (cats.labels, cats.classes, cats.encoder, cats.keys) == (None, (), "", ("cats/0", "cats/1"))
    with pytest.raises(DataError, match="expected labels in cats, got none"):
        _ = cats.true_labels


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"weights": torch.eye(2)}, {}, "tensor 'features' or 'z'"),
        ({"features": torch.ones(4)}, {}, r"shape \[n, d\].*\[4\]"),
        ({"features": torch.ones(2, 2, dtype=torch.int64)}, {}, "floating-point.*int64"),
        ({"features": torch.tensor([[1.0, 0.0], [float("nan"), 0.0]])}, {}, "NaN or infinity in row 1"),
        ({"features": torch.eye(2), "labels": torch.zeros(3, dtype=torch.int64)}, {}, r"one integer label.*\[3\]"),
        ({"features": torch.eye(2), "labels": torch.zeros(2)}, {}, "one integer label per row.*float32"),
        ({"z": torch.ones(2, 2)}, {"names": '["one"]'}, "expected 2 keys"),
        *(({"z": torch.eye(2)}, {"classes": bad}, "JSON list of strings") for bad in ("[1, 2]", '"ab"', "[", "{}")),
    ],
)
def test_bad_tensors_and_metadata_are_refused(written, tensors, metadata, message):
    with pytest.raises(DataError, match=message):
        load_features(written(metadata, **tensors))


def test_true_labels_are_refused_when_they_point_past_the_classes(written):
    path = written({"classes": '["a", "b"]'}, features=torch.eye(2), labels=torch.tensor([0, 2]))
    assert load_features(path).labels.tolist() == [0, 2]
    with pytest.raises(DataError, match=r"labels from 0 to 1.*0 to 2"):
        _ = load_features(path).true_labels


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="make them with: unseen encode"):
        load_features(tmp_path / "gone")
    (tmp_path / "torn.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="got a damaged one"):
        load_features(tmp_path / "torn.safetensors")
