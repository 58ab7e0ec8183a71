"""unseen detect as a test calls it."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from unseen.cli import app


def run(*options: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["detect", *options], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]
