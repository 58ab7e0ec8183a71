"""The features that the docs' commands read can be made by anyone who has the public images."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from helpers import openood
from helpers.commands import run
from helpers.tiny_models import save_clip

TOOL = Path(__file__).parents[2] / "tools" / "build_features.py"


def test_suites_run_on_features_that_a_reader_makes(tmp_path, monkeypatch, capsys):
    openood.mine_few_words(monkeypatch, tmp_path)
    data, out = openood.write(tmp_path / "data"), tmp_path / "out"
    model = save_clip(tmp_path / "model", context=77, letters=True)
    monkeypatch.setattr(sys, "argv", ["build_features", str(data), "-o", str(out), "--encoder", str(model)])
    runpy.run_path(str(TOOL), run_name="__main__")
    assert "images-imagenet_val5: 6 images of 3 classes" in capsys.readouterr().out
    for suite in ("imagenet200", "imagenet200-lowres", "imagenet1k-surrogate"):
        run("bench", suite, "--features", out, "--detectors", "mcm", "--seeds", 1)
