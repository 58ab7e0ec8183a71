from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers.commands import run as command
from helpers.tiny_text import HashEncoder
from unseen import LabelSpace
from unseen.cli import spaces
from unseen.errors import LabelError


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name: HashEncoder())
    monkeypatch.setattr(LabelSpace, "build", partial(LabelSpace.build, everyday=30))
    (tmp_path / "classes.txt").write_text("# mine\ncat\ndog\n")
    (tmp_path / "others.txt").write_text("wolf\n")


def run(*options: str) -> tuple[str, str]:
    result = command("mine", *options)
    return result.stdout, result.stderr


def test_names_come_from_a_file_and_from_options(tmp_path: Path) -> None:
    run("--labels", "classes.txt", "--label", "fox", "-o", "out.safetensors", "--relatives", "20")
    space = LabelSpace.load(tmp_path / "out.safetensors")
    assert space.names == ("cat", "dog", "fox")
    assert space.kinds == {"relative": 20, "everyday": 30}


def test_json_is_one_object_with_the_manifest_and_the_tree_around_each_name() -> None:
    out, _ = run("--label", "golden retriever", "--json", "--show", "--never", "toy dog")
    row = json.loads(out)
    assert row["manifest"]["corpus"] == "WordNet 3.1"
    assert row["kinds"]["never"] == 1
    assert row["near_duplicates"] == []
    around = row["tree"]["golden retriever"]
    assert around["path"] == ["golden retriever", "retriever", "sporting dog", "hunting dog", "dog"]
    assert "Labrador retriever" in around["relatives"]["retriever"]


def test_show_prints_the_tree_around_names_and_messages_go_to_stderr() -> None:
    out, err = run("--labels", "classes.txt", "--show")
    assert "cat < feline < carnivore" in out
    assert "nearest name  dog" in out
    assert "2 names + " in err
    assert "relatives + 30 everyday words" in " ".join(err.split())


def test_a_slip_of_the_pen_is_warned_about_and_is_no_error() -> None:
    _, err = run("--label", "golden retreiver", "--label", "IKEA billy shelf", "--label", "cats")
    assert "'golden retreiver': did you mean 'golden retriever'?" in " ".join(err.split())
    assert "billy" not in err


def test_near_duplicates_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    one = torch.eye(2)[:1]
    spaces.warn_near_duplicates(LabelSpace(("cat",), ("cats",), one, one))
    assert "nearly repeat a known name: cat ~ cats (1.00)" in capsys.readouterr().err


def test_no_names_are_refused() -> None:
    with pytest.raises(LabelError, match="--labels"):
        command("mine")
