"""The files in deploy/ start what they say: their commands, files and extras exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from unseen.cli import app
from unseen.serve.settings import Durability

REPO = Path(__file__).parents[1]
UNIT = (REPO / "deploy" / "unseen.service").read_text()
IMAGE = (REPO / "deploy" / "Containerfile").read_text()


def unit_value(name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    assert found, name
    return found[1]


def exit_status(words: list[str]) -> object:
    """How `unseen` ends when it is asked for help behind some options: not with 0 if it has not all of them."""
    with pytest.raises(SystemExit) as ended:
        app([*words, "--help"])
    return ended.value.code


def test_the_unit_starts_a_command_that_exists_and_leaves_it_time_to_stop():
    program, *words = shlex.split(unit_value("ExecStart"))
    assert program.endswith("/unseen")
    assert exit_status(words) == 0
    assert exit_status([*words, "--no-such-option"]) != 0
    assert "--behind-proxy" in words
    assert float(unit_value("TimeoutStopSec")) > Durability.end_seconds


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    program = shutil.which("true") or "/bin/true"
    text = UNIT.replace(shlex.split(unit_value("ExecStart"))[0], program)
    (tmp_path / "unseen.service").write_text(text.replace("User=unseen", "User=root").replace("Group=unseen", ""))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "unseen.service")]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    assert "unseen.service" not in said, said


def test_the_image_copies_what_is_there_and_starts_a_command_that_exists():
    steps = re.sub(r"^#.*\n", "", IMAGE, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    sources = [word for step in steps if step.startswith("COPY ") for word in step.split()[1:-1]]
    assert sources
    assert all((REPO / source).exists() for source in sources)
    extras = re.search(r"'\.\[(.*?)\]'", IMAGE)
    assert extras
    known = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= known.keys()
    words = re.findall(r'"(.*?)"', next(step for step in steps if step.startswith("CMD ")))
    assert words[0] == "serve"
    assert exit_status(words) == 0
    assert any(step.startswith("USER ") for step in steps)
