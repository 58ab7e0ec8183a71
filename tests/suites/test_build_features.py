"""The features that the docs' commands read can be made by anyone who has the public images."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from helpers import openood
from helpers.tiny_models import save_clip
from unseen.cli import app
from unseen_bench.mining import Corpus, find_miner, wordnet

TOOL = Path(__file__).parents[2] / "tools" / "build_features.py"


def test_suites_run_on_features_that_a_reader_makes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    few = Corpus("few", {name: words[::140] for name, words in wordnet().lists.items()})  # all take a minute
    miner = replace(find_miner("neglabel"), corpus=lambda: few)
    monkeypatch.setattr("unseen_bench.mining.mining.find_miner", lambda name: miner)
    data, model, out = (
        openood.write(tmp_path / "data"),
        save_clip(tmp_path / "model", context=77, letters=True),
        tmp_path / "out",
    )
    monkeypatch.setattr(sys, "argv", ["build_features", str(data), "-o", str(out), "--encoder", str(model)])
    spec = importlib.util.spec_from_file_location("build_features", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main()
    assert "images-imagenet_val5: 6 images of 3 classes" in capsys.readouterr().out
    for suite in ("imagenet200", "imagenet200-lowres", "imagenet1k-surrogate"):
        words = ["bench", suite, "--features", str(out), "--detectors", "mcm", "--seeds", "1"]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
