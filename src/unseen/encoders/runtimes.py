"""What runs an image tower on a CPU: OpenVINO, ONNX Runtime or torch, whichever is fastest on this machine.

OpenVINO and ONNX Runtime run one ONNX graph of the tower. Vectors of all three agree up to rounding, so the space of
an encoder does not depend on its runtime.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unseen.errors import EncoderError, check_choice, import_extra
from unseen.storage.files import cache_dir, replacing

RUNTIMES = ("openvino", "onnxruntime", "torch")
BATCH = 8  # images at a time on a CPU: bounds the memory of activations
INPUT, OUTPUT = "pixel_values", "image_embeds"

Tower = Callable[[Float[Tensor, "n 3 h w"]], Float[Tensor, "n d"]]
Graph = bytes | Path


def installed_runtimes() -> list[str]:
    """The runtimes that this environment has, the one that is fastest as a rule first."""
    return [name for name in RUNTIMES if find_spec(name)]


def check_runtime(name: str | None, device: torch.device) -> None:
    """Refuse a runtime that is none, is not installed or does not work on a device."""
    if name is None:
        return
    check_choice("a runtime", name, RUNTIMES)
    if name != "torch" and device.type != "cpu":
        raise EncoderError(f"expected the runtime torch on {device}, got {name}; leave `runtime` out, or pass cpu")
    import_extra(name, "fast" if name == "openvino" else "encode")


@dataclass(frozen=True, eq=False)
class TowerRuntimes:
    """The ways to run one image tower on the CPU of this machine, and the one that is chosen."""

    name: str  # of the encoder
    dtype: torch.dtype  # of the large products; ONNX Runtime takes them in float32
    by_torch: Tower
    graph: Callable[[], Graph]  # makes it, where there is none yet
    size: Callable[[], tuple[int, int]]  # height and width of the pictures that it takes
    has_graph: Callable[[], bool] = lambda: True  # whether that takes no time
    wanted: str | None = None

    @property
    def usable(self) -> list[str]:
        """The runtimes that are installed and can have the tower: where there is no graph yet, something writes it."""
        can_have = self.has_graph() or find_spec("onnxscript")
        return [name for name in installed_runtimes() if name == "torch" or can_have]

    @cached_property
    def chosen(self) -> str:
        """The runtime that was asked for, else the fastest measured, else the one that is fastest as a rule."""
        if self.wanted:
            return self.wanted
        usable = self.usable
        if rates := {one: rate for one, rate in measured_rates(self.name, self.dtype).items() if one in usable}:
            return max(rates, key=lambda one: rates[one])
        if self.dtype != torch.float32 and "onnxruntime" in usable:
            usable.remove("onnxruntime")  # products in float32 take longer than those of torch in bfloat16
        return usable[0] if self.has_graph() else "torch"

    @cached_property
    def tower(self) -> Tower:
        """The tower in the chosen runtime."""
        return self.make(self.chosen)

    def make(self, runtime: str) -> Tower:
        """The tower in one runtime."""
        if runtime == "torch":
            return self.by_torch
        if runtime == "openvino":
            return openvino_tower(self.graph(), self.dtype)
        return onnx_tower(onnx_session(self.graph()))

    def measure(self, *, rounds: int = 3) -> dict[str, float]:
        """Images per second of each runtime, which later runs choose by; of the wanted one alone if one was.

        The best round counts, because other work on the machine only slows.
        """
        pixels = torch.rand(BATCH, 3, *self.size())
        towers = {name: self.make(name) for name in ([self.wanted] if self.wanted else self.usable)}
        seconds = {name: [_seconds(tower, pixels) for _ in range(rounds + 1)][1:] for name, tower in towers.items()}
        rates = {name: round(BATCH / min(times), 2) for name, times in seconds.items()}
        with replacing(_record(self.name, self.dtype)) as temporary:
            temporary.write_text(json.dumps(rates))
        return rates


def measured_rates(name: str, dtype: torch.dtype) -> Mapping[str, float]:
    """Images per second of an encoder by runtime, as measured on this machine; none where nothing was measured."""
    record = _record(name, dtype)
    rates: dict[str, float] = json.loads(record.read_text()) if record.is_file() else {}
    return rates


def _record(name: str, dtype: torch.dtype) -> Path:
    """Where a measurement is kept: another machine, or other versions, measure again."""
    versions = [metadata.version(one) for one in installed_runtimes()]
    processor = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    digest = hashlib.sha256(json.dumps([name, str(dtype), processor, versions]).encode()).hexdigest()
    return cache_dir("runtimes") / f"{digest[:16]}.json"


@torch.inference_mode()
def _seconds(tower: Tower, pixels: Tensor) -> float:
    started = time.perf_counter()
    tower(pixels)
    return time.perf_counter() - started


def onnx_session(graph: Graph) -> Any:
    """A graph in ONNX Runtime, on the CPU."""
    runtime = import_extra("onnxruntime", "encode")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3  # errors only
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # weights kept in 8 bits become floats now
    source = graph if isinstance(graph, bytes) else str(graph)
    return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def onnx_tower(session: Any) -> Tower:
    """A tower in ONNX Runtime, in float32."""
    return lambda pixels: torch.from_numpy(session.run(None, {INPUT: pixels.numpy()})[0])


def openvino_tower(graph: Graph, dtype: torch.dtype) -> Tower:
    """A tower in OpenVINO; with bfloat16 the first convolution stays in float32, because pixels feel rounding most."""
    openvino, core = import_extra("openvino", "fast"), _openvino_core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    model = core.read_model(graph)
    passes = import_extra("openvino.passes", "fast")
    folding = passes.Manager()
    folding.register_pass(passes.ConstantFolding())  # weights kept in 8 bits become floats now
    folding.run_passes(model)
    parts, hints = ((model,), ("f32",)) if dtype == torch.float32 else (_cut(openvino, model), ("f32", "bf16"))
    steps = [
        core.compile_model(part, "CPU", settings | {"INFERENCE_PRECISION_HINT": hint})
        for part, hint in zip(parts, hints, strict=True)
    ]
    one_at_a_time = threading.Lock()  # a compiled model has one set of buffers

    def run(pixels: Tensor) -> Tensor:
        values = pixels.numpy()
        with one_at_a_time:
            for step in steps:
                values = step(values)[0]
        return torch.from_numpy(values)

    return run


@cache
def _openvino_core() -> Any:
    """OpenVINO, once for the life of the process.

    It gives the thread that first compiles a stack for signals, and takes it back when it goes; of two, the one that
    goes first would leave a stack that is no more, and the next signal would end the process.
    """
    return import_extra("openvino", "fast").Core()


def _cut(openvino: Any, model: Any) -> tuple[Any, Any]:
    """A model up to its first convolution, and the rest."""
    convolution = next(one for one in model.get_ordered_ops() if one.get_type_name() == "Convolution").output(0)
    (pixels,) = model.get_parameters()
    middle = import_extra("openvino.opset13", "fast").parameter(convolution.get_partial_shape(), openvino.Type.f32)
    # what else reads the pixels asks how many images there are
    counts = [one for one in pixels.output(0).get_target_inputs() if one.get_node().get_type_name() == "ShapeOf"]
    for reader in [*convolution.get_target_inputs(), *counts]:
        reader.replace_source_output(middle.output(0))
    return openvino.Model([convolution], [pixels], "pixels"), openvino.Model(model.get_results(), [middle], "tower")


class _ImageTower(torch.nn.Module):
    """The image side of an encoder as a module, in float32."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.model = copy.deepcopy(encoder.model).float().cpu()
        self.encoder = copy.copy(encoder)
        self.encoder.model = self.model

    def forward(self, pixel_values: Tensor) -> Tensor:
        vectors: Tensor = self.encoder.image_tower(pixel_values)
        return vectors


def export_tower(encoder: Any, path: Path, size: tuple[int, int]) -> None:
    """Write the image tower of an encoder of torch as an ONNX graph for pictures of one height and width."""
    import_extra("onnxscript", "export")  # which torch's exporter needs
    with redirect_stdout(StringIO()):  # the exporter prints its own progress
        torch.onnx.export(
            _ImageTower(encoder).eval(),
            (torch.zeros(2, 3, *size),),
            path,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: "batch"},),
            external_data=False,
            dynamo=True,
        )
