"""unseen export: an encoder's image tower as one ONNX file."""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.encoders import load_encoder
from unseen.encoders.hub import HubEncoder
from unseen.encoders.onnx import export as write_onnx
from unseen.errors import EncoderError


def export(
    encoder: Annotated[str, typer.Argument(help="A short name, hub id or model folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .onnx file to write.")],
    as_json: options.AsJson = False,
) -> None:
    """Write an image tower with its preprocessing as one ONNX file, which ONNX Runtime runs.

    Example: `unseen export ViT-B/16 -o b16.onnx` and then `unseen encode photos/ --encoder b16.onnx -o features/`
    """
    if output.suffix != ".onnx":
        raise EncoderError(f"expected an output that ends in .onnx, got {output.name}; encoders are known by it")
    model = load_encoder(encoder, device="cpu")
    if not isinstance(model, HubEncoder):
        raise EncoderError(f"expected a transformers model to export, got {encoder}; try ViT-B/16 or a model folder")
    path = write_onnx(model, output)
    if as_json:
        terminal.emit({"path": str(path), "model": model.name, "dim": model.dim, "bytes": path.stat().st_size})
    else:
        terminal.err.print(f"{model.name} written to {path} · {path.stat().st_size / 1e6:,.0f} MB · width {model.dim}")
