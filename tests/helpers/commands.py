"""Commands as a test calls them."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import typer
from typer.testing import CliRunner, Result

from unseen.cli import app


def run(*words: object, code: int = 0) -> Result:
    """The result of a command that ends with this code; its errors are raised."""
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def rows(result: Result) -> list[dict[str, Any]]:
    """The JSON objects that a command has printed."""
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def detect(*words: object, batch: int = 32, code: int = 0) -> Result:
    """The result of `unseen detect`, with so many photos between two looks at Ctrl-C and at the time."""
    from unseen.cli.run import photo_steps  # late: it imports torch, and tools count options without

    with patch("unseen.cli.run.photo_steps", partial(photo_steps, size=batch)):
        return run("detect", *words, code=code)


def leaf_of(words: Sequence[str]) -> Any:
    """The command that some words call."""
    found: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(found, "commands"):
        _, found, rest = found.resolve_command(found.make_context("unseen", list(rest), resilient_parsing=True), rest)
    return found


def leaves(group: Any = None, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that takes no further command, with its words."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *before, name)
        else:
            yield (*before, name), command
