from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unseen
from unseen.cli import COMMANDS, app, first_line, load_command, main, terminal
from unseen.cli.panels import PANELS
from unseen.errors import DataError, UnseenError
from unseen.features import load_features

runner = CliRunner()


def test_json_has_null_for_what_is_not_a_number(capsys):
    terminal.emit({"share": math.nan, "parts": [{"far": math.inf, "near": 0.5}], "path": Path("a")})
    assert json.loads(capsys.readouterr().out) == {"share": None, "parts": [{"far": None, "near": 0.5}], "path": "a"}


def test_an_error_is_printed_on_one_line(capsys):
    terminal.fail(UnseenError("word " * 60))
    assert len(capsys.readouterr().err.splitlines()) == 1


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command by its words."""
    for name in COMMANDS:
        command = load_command(name)
        yield from [(name, part) for part in command.commands] if hasattr(command, "commands") else [(name,)]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_an_example_and_a_json_option(words):
    text = runner.invoke(app, [*words, "--help"]).stdout
    assert "Example" in text
    assert "--json" in text


def test_the_help_starts_with_what_to_type_and_fits_80_columns():
    text = runner.invoke(app, ["--help"]).stdout
    assert "Start with: unseen demo, then unseen detect photos/" in text
    assert "─ Commands ─" not in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", list(PANELS))
def test_every_option_of_a_long_help_is_in_a_panel(name):
    command = load_command(name)
    command = getattr(command, "commands", {}).get(name, command)
    options = {one.name for one in command.params if one.param_type_name == "option"}
    listed = {option for names in PANELS[name].values() for option in names}
    assert options <= listed
    text = runner.invoke(app, [name, "--help"]).stdout
    assert "─ Options ─" not in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    places = [text.index(f"─ {panel} ─") for panel in PANELS[name]]
    assert places == sorted(places)


def test_ctrl_c_while_torch_is_imported_ends_quietly():
    stop = "class Stop:\n def find_spec(self, name, *_):\n  if name == 'torch': signal.raise_signal(signal.SIGINT)\n"
    script = "import signal, sys, unseen.__main__ as entry\n"
    script += f"{stop}sys.meta_path.insert(0, Stop())\nsys.argv[1:] = ['detect', '--help']\nentry.main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_in_a_command_ends_with_a_word_and_no_traceback(monkeypatch):
    def stop(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("unseen.cli.models.find_model", stop)
    result = runner.invoke(app, ["models", "show", "offline"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "stopped\n")


def test_a_full_disk_or_a_closed_folder_ends_in_one_sentence(monkeypatch, capsys):
    def refuse(name):
        raise OSError(28, "No space left on device", "/data/x")

    monkeypatch.setattr("unseen.cli.models.find_model", refuse)
    monkeypatch.setattr(sys, "argv", ["unseen", "models", "show", "offline"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == (
        "DataError: expected files that can be read and written, got: No space left on device (/data/x); "
        "check permissions and free space\n"
    )


def test_an_error_that_nobody_foresaw_ends_in_one_sentence_and_a_file(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("unseen.cli.models.find_model", lambda name: {}["nothing"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["unseen", "models", "show", "offline"])
    with pytest.raises(SystemExit, match="2"):
        main()
    (file,) = tmp_path.iterdir()
    printed = capsys.readouterr().err
    assert printed.startswith(
        "UnseenError: expected no error here, got KeyError: 'nothing'; this is a defect of unseen"
    )
    assert len(printed.splitlines()) == 1
    assert str(file) in printed
    assert "Traceback" in file.read_text()


def test_the_version_is_printed():
    assert runner.invoke(app, ["--version"]).stdout.strip() == f"unseen {unseen.__version__}"


def test_the_installed_command_starts():
    result = subprocess.run([sys.executable, "-m", "unseen", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"unseen {unseen.__version__}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_shows_the_first_line_of_each_commands_own_help(name):
    assert first_line(name) == load_command(name).help.partition("\n")[0]


QUICK = [["--help"], ["--version"], ["no-such-command"], ["keys", "list"], ["keys", "add", "--help"]]


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_what_needs_no_model_imports_neither_torch_nor_transformers(words, tmp_path):
    script = "import sys, unseen.__main__ as entry\ntry: entry.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script, *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    imported = set(result.stderr.split())
    assert not imported & {"torch", "transformers", "numpy"}
    assert len(imported) < 700  # today 100 to 500; torch alone brings 1,000


def test_the_package_offers_its_names_before_they_are_imported():
    script = "import sys, unseen; print('Session' in dir(unseen), 'torch' in sys.modules); print(unseen.Session)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["True False", "<class 'unseen.session.Session'>"]


def test_the_demo_prints_its_first_line_before_it_computes(tmp_path, monkeypatch):
    def no_session(*_: object, **__: object) -> None:
        raise UnseenError("stop here")

    demo = importlib.import_module("unseen_bench.cli.demo")
    monkeypatch.setattr(demo.SessionOptions, "session", no_session)
    result = runner.invoke(app, ["demo", "--report", str(tmp_path / "demo.html")])
    assert "real images" in result.stdout
    assert isinstance(result.exception, UnseenError)


def test_an_empty_list_of_keys_says_how_to_make_one(tmp_path):
    result = runner.invoke(app, ["keys", "list", "--data", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"make one: unseen keys add --scope admin --data {tmp_path}" in result.stderr


def test_photos_in_place_of_features_are_refused_with_the_command(tmp_path):
    with pytest.raises(DataError, match=rf"encode photos first: unseen encode {tmp_path} -o features/"):
        load_features(tmp_path)
