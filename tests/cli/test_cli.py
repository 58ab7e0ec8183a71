from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import unseen
from unseen.cli import app, terminal
from unseen.errors import UnseenError

runner = CliRunner()


def test_json_has_null_for_what_is_not_a_number(capsys):
    terminal.emit({"share": math.nan, "parts": [{"far": math.inf, "near": 0.5}], "path": Path("a")})
    assert json.loads(capsys.readouterr().out) == {"share": None, "parts": [{"far": None, "near": 0.5}], "path": "a"}


def test_an_error_is_printed_on_one_line(capsys):
    terminal.fail(UnseenError("word " * 60))
    assert len(capsys.readouterr().err.splitlines()) == 1


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command by its words."""
    for name, command in vars(typer.main.get_command(app))["commands"].items():
        yield from [(name, part) for part in command.commands] if hasattr(command, "commands") else [(name,)]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_an_example_and_a_json_option(words):
    text = runner.invoke(app, [*words, "--help"]).stdout
    assert "Example" in text
    assert "--json" in text


def test_ctrl_c_while_torch_is_imported_ends_quietly():
    stop = "class Stop:\n def find_spec(self, name, *_):\n  if name == 'torch': signal.raise_signal(signal.SIGINT)\n"
    script = f"import signal, sys, unseen.__main__ as entry\n{stop}sys.meta_path.insert(0, Stop())\nentry.main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_the_version_is_printed():
    assert runner.invoke(app, ["--version"]).stdout.strip() == f"unseen {unseen.__version__}"


def test_the_installed_command_starts():
    result = subprocess.run([sys.executable, "-m", "unseen", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"unseen {unseen.__version__}"
