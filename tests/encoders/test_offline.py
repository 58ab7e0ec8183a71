"""The offline encoder: its real weights where they have been fetched, its parts everywhere."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from helpers.pictures import encoded
from unseen.encoders import load_encoder
from unseen.encoders.offline import image_tower
from unseen.encoders.runtimes import onnx_session, onnx_tower
from unseen.errors import EncoderError, MissingExtra
from unseen.features import load_features
from unseen.features.encoding import NUMBERS
from unseen.images import Entry, Image, find_images, read_entries

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
    if not image_tower.TOWER.path.is_file():
        pytest.skip("the offline tower is not here; run: unseen models fetch offline")
    return load_encoder("offline", device="cpu", dtype=torch.float32, runtime="torch")


@pytest.mark.data
def test_vectors_of_a_fixed_picture_keep_their_values(tower):
    (z,) = tower.images([gradient()])
    torch.testing.assert_close(z[:8], torch.tensor(GOLDEN), atol=1e-5, rtol=0)
    assert abs(z.norm() - 1) < 1e-6
    assert tower.images([]).shape == (0, 512)


@pytest.mark.data
@pytest.mark.parametrize(
    ("runtime", "dtype", "close"),
    [
        ("openvino", torch.bfloat16, 0.999),
        ("openvino", torch.float32, 0.9999),
        ("onnxruntime", torch.float32, 0.9999),
        ("torch", torch.bfloat16, 0.999),
    ],
)
def test_every_runtime_has_the_vectors_of_torch_in_float32(tower, runtime, dtype, close):
    pytest.importorskip(runtime)
    other = load_encoder("offline", device="cpu", dtype=dtype, runtime=runtime)
    some = [gradient(), Image("text", page_of_text((400, 300)))]
    assert torch.cosine_similarity(other.images(some), tower.images(some)).min() > close
    assert other.fingerprint == tower.fingerprint


def page_of_text(size):
    page = Pillow.new("RGB", size, "white")
    for y in range(0, size[1], 72):
        ImageDraw.Draw(page).text((9, y), "the unknown object of a photo " * 9, "black", ImageFont.load_default(60))
    return page


def woven(size):
    row, column = np.mgrid[0 : size[1], 0 : size[0]]
    threads = 127.5 + 127.5 * np.sin(column / 2.3 + row / 9) * np.sin(row / 3.1)
    return Pillow.fromarray(threads.astype(np.uint8)).convert("RGB")


@pytest.mark.data
@pytest.mark.parametrize("paint", [page_of_text, woven])
def test_vectors_of_jpegs_of_text_and_texture_read_at_a_quarter_of_their_size_hardly_move(tower, paint):
    data = encoded(paint((4000, 3000)), "JPEG", quality=90)  # as phones take them
    entry = Entry("a.jpg", "", data=lambda: data)
    whole, reduced = entry.read(), entry.read(NUMBERS.spare * tower.side)
    assert reduced.pixels.size == (1000, 750)
    assert torch.cosine_similarity(tower.images([whole]), tower.images([reduced])).min() > 0.998


@pytest.mark.data
def test_shared_photos_land_where_the_shared_features_are(tower, features):
    shard = features.parent / "images" / "eval-imagenet-val5.tar"
    if not shard.is_file():
        pytest.skip("the shared photos are not here")
    (batch,) = read_entries(find_images(shard)[:8])
    # the photos are 96 pixels wide and in another order than the features, which saw them whole
    nearest = (tower.images(batch) @ load_features(features / "images-imagenet_val5.safetensors").z.T).amax(dim=1)
    assert 0.75 < nearest.mean() < 0.95


def test_dequantised_weights_have_the_layout_of_torch(tmp_path):
    weights = image_tower.read_weights(_save_graph(tmp_path / "m.onnx", zero_point=0))
    expected = torch.tensor([[1.0, 2.0, 3.0], [-40.0, 50.0, -60.0]])  # out x in, each row times its own scale
    assert weights.keys() == {"visual_projection.weight", "vision_model.post_layernorm.bias"}
    torch.testing.assert_close(weights["visual_projection.weight"], expected)


def test_the_graph_in_floats_multiplies_by_the_dequantised_weights(tmp_path):
    graph = image_tower.float_graph(_save_graph(tmp_path / "m.onnx", zero_point=0))
    pixels = torch.tensor([[0.1, 200.0, -3.0]])  # which bytes with one scale would round off
    assert onnx_tower(onnx_session(graph))(pixels).tolist() == [pytest.approx([391.1, 10176.0])]
    assert {node.op_type for node in onnx.load_from_string(graph).graph.node} == {"DequantizeLinear", "MatMul"}


def _save_graph(path, zero_point):
    """A graph of one product in eight bits, as the pinned file has 73 of them."""
    make, node = onnx.helper.make_tensor, onnx.helper.make_node
    tensors = [
        make("w_quantized", onnx.TensorProto.INT8, [3, 2], [1, -4, 2, 5, 3, -6]),
        make("w_scale", onnx.TensorProto.FLOAT, [2], [1.0, 10.0]),
        make("w_zero_point", onnx.TensorProto.INT8, [2], [zero_point, 0]),
        make("vision_model.post_layernorm.bias", onnx.TensorProto.FLOAT, [2], [0.5, 0.25]),
    ]
    nodes = [
        node("DynamicQuantizeLinear", ["pixel_values"], ["bytes", "scale", "zero"]),
        node("Mul", ["scale", "w_scale"], ["scales"]),
        node(
            "MatMulInteger",
            ["bytes", "w_quantized", "zero", "w_zero_point"],
            ["whole"],
            name="/visual_projection/MatMul_quant",
        ),
        node("Cast", ["whole"], ["floats"], to=onnx.TensorProto.FLOAT),
        node("Mul", ["floats", "scales"], ["image_embeds"]),
    ]
    kind = onnx.TensorProto.FLOAT
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, kind, ["n", width])]
        for name, width in (("pixel_values", 3), ("image_embeds", 2))
    )
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, tensors)
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def test_weights_that_are_not_symmetric_are_refused(tmp_path):
    for read in (image_tower.read_weights, image_tower.float_graph):
        with pytest.raises(EncoderError, match="expected symmetric int8 weights"):
            read(_save_graph(tmp_path / "m.onnx", zero_point=3))


def test_a_missing_onnx_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"\(extra unseen\[encode\]\) .* pip install 'onnx"):
        image_tower.read_weights(tmp_path / "m.onnx")
