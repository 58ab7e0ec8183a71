"""Without the extra, `--ray` says what to install, and says so before anything slow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers.streams import space, stream
from unseen.cli import app
from unseen.errors import MissingExtra, SettingError


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sys.modules, "ray", None)
    labels = space(dtype=torch.float32)
    labels.save(tmp_path / "space.safetensors")
    save_file({"features": stream(labels, 9)}, tmp_path / "z.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "mine --label cat --ray local -o {0}/out.safetensors",
        "score {0}/z.safetensors --space {0}/space.safetensors --shards 2 --ray local",
        "serve --data {0}/data --port 0 --encoder none --ray local",
    ],
)
def test_without_ray_a_command_names_the_extra_to_install(files: Path, command: str) -> None:
    with pytest.raises(MissingExtra, match=r"unseen\[ray\]"):
        CliRunner().invoke(app, command.format(files).split(), catch_exceptions=False)


def test_shards_in_this_process_work_without_ray(files: Path) -> None:
    asked = f"score {files}/z.safetensors --space {files}/space.safetensors --shards 2 --merge-every 4"
    assert CliRunner().invoke(app, asked.split(), catch_exceptions=False).exit_code == 0


def test_a_service_on_ray_keeps_a_journal(files: Path) -> None:
    with pytest.raises(SettingError, match="--volatile"):
        CliRunner().invoke(app, f"serve --data {files} --ray local --volatile".split(), catch_exceptions=False)
