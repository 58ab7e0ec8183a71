"""The command line: one file per command, each a thin call into one module of the library."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

import unseen
from unseen.cli import terminal
from unseen.errors import UnseenError

COMMANDS = ("demo", "detect", "encode", "mine", "score", "bench", "gap", "serve", "export")
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


for name in COMMANDS:
    app.command(name)(getattr(importlib.import_module(f"unseen.cli.{name}"), name))
for name in GROUPS:
    app.add_typer(getattr(importlib.import_module(f"unseen.cli.{name}"), name), name=name)


def main() -> None:
    """Run the command line; an error raised on purpose ends in one sentence and exit code 2."""
    try:
        app()
    except UnseenError as error:
        terminal.fail(error)
        sys.exit(terminal.MISUSE)
