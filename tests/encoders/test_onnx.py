"""Export to ONNX and back."""

import sys
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from helpers.tiny_models import pictures, save_clip
from unseen.encoders import load_encoder
from unseen.encoders.onnx import export
from unseen.errors import EncoderError, MissingExtra

pytest.importorskip("onnxscript")
# torch's exporter uses parts of itself that it deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_an_exported_tower_gives_the_same_images_and_carries_its_preprocessing(tmp_path):
    original: Any = load_encoder(save_clip(tmp_path / "model"), device="cpu")
    exported = load_encoder(export(original, tmp_path / "tower.onnx"))
    images = pictures(3)
    torch.testing.assert_close(exported.images(images), original.images(images), atol=1e-5, rtol=1e-4)
    assert exported.images(images[:1]).shape == (1, original.dim)
    assert exported.images([]).shape == (0, original.dim)
    assert exported.fingerprint == original.fingerprint
    with pytest.raises(EncoderError, match="got an image tower only; build the label space with"):
        exported.texts(["cat"])


def test_a_graph_without_preprocessing_is_refused(tmp_path):
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", 1, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [value], [_renamed(value)])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "other.onnx")
    with pytest.raises(EncoderError, match="expected a file of unseen models export"):
        load_encoder(tmp_path / "other.onnx")


def test_other_files_and_a_missing_package_are_refused(tmp_path, monkeypatch):
    save_file({"x": torch.ones(1)}, tmp_path / "no.onnx")
    with pytest.raises(EncoderError, match="expected an ONNX model"):
        load_encoder(tmp_path / "no.onnx")
    with pytest.raises(EncoderError, match="expected an ONNX model"):
        load_encoder(tmp_path / "gone.onnx")
    with pytest.raises(EncoderError, match="expected float32"):
        load_encoder(tmp_path / "no.onnx", dtype=torch.bfloat16)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match="pip install"):
        load_encoder(tmp_path / "tower.onnx")


def _renamed(value):
    renamed = type(value)()
    renamed.CopyFrom(value)
    renamed.name = "y"
    return renamed
