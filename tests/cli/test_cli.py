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
from safetensors.torch import save_file
from typer.testing import CliRunner

import unseen
from helpers.streams import space, stream
from unseen import LabelSpace, Session
from unseen.cli import app, main, terminal
from unseen.errors import UnseenError
from unseen.verdicts import FIELDS

runner = CliRunner()


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Write a label space and a stream; return their paths and that of a state to be."""
    labels = space()
    labels.save(tmp_path / "space.safetensors")
    save_file({"features": stream(labels, 90).half()}, tmp_path / "features.safetensors")
    return {name: str(tmp_path / f"{name}.safetensors") for name in ("space", "features", "state")}


def invoke(*arguments: str) -> list[dict]:
    result = runner.invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_score_prints_a_verdict_per_sample_and_a_summary(files):
    *rows, last = invoke("score", files["features"], "--space", files["space"], "--threshold", "0")
    assert [row["key"] for row in rows] == [f"features/{i}" for i in range(90)]
    assert {tuple(row) for row in rows} == {FIELDS}
    assert {row["verdict"] for row in rows} == {"known", "unknown"}
    assert all((row["name"] is None) == (row["verdict"] == "unknown") for row in rows)
    assert last["summary"]["known"] == sum(row["verdict"] == "known" for row in rows)
    assert last["summary"]["seen"] == 90
    assert last["state"] is None


def test_score_goes_on_from_its_state(files):
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    first = invoke(*arguments)[-1]["summary"]
    second = invoke(*arguments)[-1]["summary"]
    assert (first["seen"], second["seen"]) == (90, 180)
    session = Session.load(files["state"], LabelSpace.load(files["space"]))
    assert int(session.snapshot.tally.seen) == 180


def test_no_learn_changes_nothing(files):
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    invoke(*arguments)
    kept = Path(files["state"]).read_bytes()
    first, second = invoke(*arguments, "--no-learn"), invoke(*arguments, "--no-learn")
    assert first[:-1] == second[:-1]
    assert Path(files["state"]).read_bytes() == kept


def test_an_interrupted_run_keeps_what_it_learned(files, monkeypatch):
    monkeypatch.setattr("unseen.cli.score.BATCH", 30)
    observe, calls = Session.observe, []

    def interrupted(self, z):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return observe(self, z)

    monkeypatch.setattr(Session, "observe", interrupted)
    result = runner.invoke(app, ["score", files["features"], "--space", files["space"], "--state", files["state"]])
    assert result.exit_code != 0
    session = Session.load(files["state"], LabelSpace.load(files["space"]))
    assert int(session.snapshot.tally.seen) == 60


def test_the_plain_output_is_one_line_per_sample(files):
    result = runner.invoke(app, ["score", files["features"], "--space", files["space"]])
    assert result.exit_code == 0
    assert len([line for line in result.stdout.splitlines() if "known" in line]) >= 90


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--detector", "nobody"), "expected a detector out of"),
        (("--space", "missing.safetensors"), "got no file at missing.safetensors"),
        (("--recall", "2"), "expected a recall between 0 and 1"),
    ],
)
def test_misuse_ends_in_one_sentence_and_exit_code_2(files, change, message, monkeypatch, capsys):
    arguments = ["unseen", "score", files["features"], "--space", files["space"], *change]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_state_of_another_detector_is_named(files):
    arguments = ["score", files["features"], "--space", files["space"], "--state", files["state"]]
    runner.invoke(app, arguments)
    result = runner.invoke(app, [*arguments, "--detector", "mcm"])
    assert "was learned with, pooled, got mcm" in str(result.exception)


def test_score_goes_on_with_the_detector_and_the_threshold_of_its_state(files):
    arguments = ("score", files["features"], "--space", files["space"], "--state", files["state"])
    invoke(*arguments, "--detector", "mcm", "--recall", "0.9")
    invoke(*arguments)
    assert invoke(*arguments, "--recall", "0.9")[-1]["summary"]["seen"] == 270
    result = runner.invoke(app, [*arguments, "--recall", "0.5"])
    assert "expected --recall and --threshold as" in str(result.exception)


def test_json_is_strict(capsys):
    terminal.emit({"share": math.nan, "parts": [{"far": math.inf, "near": 0.5}], "path": Path("a")})
    assert json.loads(capsys.readouterr().out) == {"share": None, "parts": [{"far": None, "near": 0.5}], "path": "a"}


def test_an_error_is_one_line(capsys):
    terminal.fail(UnseenError("word " * 60))
    assert len(capsys.readouterr().err.splitlines()) == 1


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command by its words."""
    for name, command in vars(typer.main.get_command(app))["commands"].items():
        yield from [(name, part) for part in command.commands] if hasattr(command, "commands") else [(name,)]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_teaches_by_example_and_speaks_json(words):
    text = runner.invoke(app, [*words, "--help"]).stdout
    assert "Example" in text
    assert "--json" in text


def test_ctrl_c_while_torch_is_imported_ends_quietly():
    stop = "class Stop:\n def find_spec(self, name, *_):\n  if name == 'torch': signal.raise_signal(signal.SIGINT)\n"
    script = f"import signal, sys, unseen.__main__ as entry\n{stop}sys.meta_path.insert(0, Stop())\nentry.main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_version_is_said():
    assert runner.invoke(app, ["--version"]).stdout.strip() == f"unseen {unseen.__version__}"


def test_the_installed_command_starts():
    result = subprocess.run([sys.executable, "-m", "unseen", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"unseen {unseen.__version__}"
