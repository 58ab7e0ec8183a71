"""Commands as a test calls them."""

import json
from functools import partial
from typing import Any

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


detect = partial(run, "detect")
