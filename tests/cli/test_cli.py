"""The command line as a whole: help, budgets, exit codes, and what is imported when."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import leaf_of, leaves, run
from unseen.cli import main, output
from unseen.cli.edit import VERBS
from unseen.errors import SettingError, UnseenError

LEAVES = dict(leaves())


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_of_edit_is_a_command_and_takes_its_words(verb):
    assert leaf_of([verb]).name == "edit"
    with pytest.raises(SettingError, match=f"after {verb}, got a b c"):
        run(verb, "a", "b", "c", "--state", "state")


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_has_an_example_and_a_json_option_and_fits_80_columns(words):
    text = run(*words, "--help").stdout
    assert "Example" in text
    assert "--json" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_detect_shows_the_eight_options_that_people_use_and_no_detector_of_the_laboratory():
    shown = [one for one in LEAVES[("detect",)].params if one.param_type_name == "option" and not one.rich_help_panel]
    names = ["label", "labels", "examples", "encoder", "state", "report", "file", "as_json"]
    assert [one.name for one in shown] == names
    text = run("detect", "--help").stdout
    assert "─ More ─" in text
    assert "adaneg" not in text


QUICK = [["--help"], ["--version"], ["no-such-command"], ["keys", "list"]]


@pytest.mark.parametrize("words", [*QUICK, [*map(list, LEAVES)]], ids=["list", "version", "misuse", "keys", "all help"])
def test_what_needs_no_model_imports_neither_torch_nor_what_else_is_slow(words, tmp_path):
    script = f"""
import sys, unseen.__main__ as entry
for words in {[[*one, "--help"] for one in words] if isinstance(words[0], list) else [words]}:
    sys.argv[1:] = words
    try: entry.main()
    except SystemExit: pass
print(*sys.modules, file=sys.stderr)
"""
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    imported = set(result.stderr.split())
    assert not imported & {"torch", "transformers", "numpy", "onnx", "onnxruntime", "PIL", "ray", "pyarrow"}
    assert len(imported) < 700  # torch alone brings 1,000


def test_json_has_null_for_what_is_not_a_number(capsys):
    output.emit({"share": math.nan, "parts": [{"far": math.inf, "near": 0.5}], "path": Path("a")})
    assert json.loads(capsys.readouterr().out) == {"share": None, "parts": [{"far": None, "near": 0.5}], "path": "a"}


def test_ctrl_c_while_torch_is_imported_ends_quietly(tmp_path):
    stop = "class Stop:\n def find_spec(self, name, *_):\n  if name == 'torch': signal.raise_signal(signal.SIGINT)\n"
    script = "import signal, sys, unseen.__main__ as entry\n"
    script += f"{stop}sys.meta_path.insert(0, Stop())\nsys.argv[1:] = ['detect', {str(tmp_path)!r}]\nentry.main()"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_in_a_command_ends_with_a_word_and_no_traceback(monkeypatch):
    def stop(name):
        with output.interruptible():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("unseen.encoders.catalogue.find_model", stop)
    result = run("models", "show", "offline", code=130)
    assert (result.stdout, result.stderr) == ("", "stopped\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnseenError("word " * 60), "UnseenError: word word"),
        (
            OSError(28, "No space left on device", "/data/x"),
            "DataError: expected files that can be read and written, got: No space left on device (/data/x); check",
        ),
        (MemoryError(), "DataError: expected enough memory, got too little; use a smaller --batch"),
        (
            KeyError("nothing"),
            "UnseenError: expected no error here, got KeyError: 'nothing'; this is a defect of unseen",
        ),
    ],
)
def test_every_error_ends_in_one_sentence_and_exit_code_2(monkeypatch, capsys, tmp_path, error, words):
    def refuse(name):
        raise error

    monkeypatch.setattr("unseen.encoders.catalogue.find_model", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["unseen", "models", "show", "offline"])
    with pytest.raises(SystemExit, match="2"):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)
    for file in tmp_path.iterdir():  # of a defect
        assert str(file) in line
        assert "Traceback" in file.read_text()
