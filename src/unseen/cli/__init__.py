"""The command line: one file per command, each a thin call into one module of the library."""

import importlib
import sys
from typing import Annotated, Any

import typer

import unseen
from unseen.cli import options, terminal
from unseen.errors import UnseenError

COMMANDS = (
    "demo",
    "detect",
    "calibrate",
    "encode",
    "mine",
    "gap",
    "serve",
    "export",
)  # unseen.cli.NAME holds the function NAME
EXTENDED = {
    "score": ("streams",),
    "bench": ("compare", "paper"),
}  # also `unseen bench compare`: bench_compare.py
GROUPS = ("models", "keys")

app = typer.Typer(
    help="Know which images belong to none of your classes. No training, no labels.",
    epilog="Exit codes: 0 done, 1 some input was skipped, 2 misuse.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Know which images belong to none of your classes. No training, no labels."""
    if version:
        typer.echo(f"unseen {unseen.__version__}")
        raise typer.Exit


def _find(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"unseen.cli.{module}"), name)


def _extended(name: str, others: tuple[str, ...]) -> typer.Typer:
    """Return a command that takes any words, and further commands under its name."""
    group = options.default_group()
    group.command(name)(_find(name, name))
    for other in others:
        group.command(other)(_find(f"{name}_{other}", other))
    return group


for name in COMMANDS:
    app.command(name)(_find(name, name))
for name, others in EXTENDED.items():
    app.add_typer(_extended(name, others), name=name, help=_find(name, name).__doc__)
for name in GROUPS:
    app.add_typer(_find(name, name), name=name)


def main() -> None:
    """Run the command line; an error raised on purpose ends in one sentence and exit code 2."""
    try:
        app()
    except UnseenError as error:
        terminal.fail(error)
        sys.exit(terminal.MISUSE)
