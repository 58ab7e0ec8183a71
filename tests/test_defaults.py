"""One default for encoder, negatives, prompt, detector, temperature, threshold and recall from every door."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from helpers.commands import run
from helpers.pictures import flat
from helpers.service import Limits, StreamConfig
from helpers.tiny_models import NamedColours
from unseen import LabelSpace, Session, SessionSpec, detectors
from unseen.cli import detect, encode, mine, output, serve
from unseen.estimator import UnknownDetector
from unseen.labels import negatives
from unseen.serve.http.schema import StreamBody
from unseen.serve.work import encoding
from unseen.threshold import Adaptive, Calibrated, calibration
from unseen.verdicts import FIELDS
from unseen_bench.methods.prompts import REGISTRY

NAMES = ["red", "green"]
LABELS = [word for name in NAMES for word in ("--label", name)]


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = NamedColours()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    for module in ("unseen.encoders", encoding.__name__):
        monkeypatch.setattr(f"{module}.load_encoder", lambda name, **options: made)
    return made


def served(space: LabelSpace) -> Session:
    body = StreamBody.model_validate({"names": NAMES})
    config = StreamConfig("", "", "me", body.detector, body.settings, body.threshold.kind, body.threshold.settings)
    return config.spec(space).build()


def test_label_space_and_session_are_the_same_from_every_door(tmp_path: Path, encoder: Any) -> None:
    space = LabelSpace.build(NAMES, encoder)
    body = StreamBody.model_validate({"names": NAMES})
    flat((250, 5, 5), (16, 16)).save(tmp_path / "a.png")
    save_file({"features": encoder.texts(NAMES)}, tmp_path / "features.safetensors")
    run("mine", *LABELS, "-o", "mined.safetensors")
    run("detect", "a.png", *LABELS, "--state", "detect.safetensors")
    run("score", "features.safetensors", "--space", "mined.safetensors", "--state", "score.safetensors")
    estimator = UnknownDetector(NAMES, encoder).fit()
    spaces = {
        "unseen mine": LabelSpace.load("mined.safetensors"),
        "unseen detect": LabelSpace.load("detect.space.safetensors"),
        "HTTP": asyncio.run(encoding.ImageEncoder("hash", Limits()).space(body.names, body.negatives)),
        "scikit-learn": estimator.session_.detector.labels,
    }
    assert {door: one.fingerprint for door, one in spaces.items()} == dict.fromkeys(spaces, space.fingerprint)
    sessions = {
        "unseen detect": Session.load("detect.safetensors", space),
        "unseen score": Session.load("score.safetensors", space),
        "Ray": SessionSpec(space).build(),
        "HTTP": served(space),
        "scikit-learn": estimator.session_,
    }
    assert {door: one.identity for door, one in sessions.items()} == dict.fromkeys(sessions, Session(space).identity)


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_options_that_several_doors_have_start_alike() -> None:
    encoders = [default(one, "encoder") for one in (mine.mine, encode.encode, serve.serve, UnknownDetector)]
    assert {*encoders, default(detect.detect, "encoder") or "offline"} == {"offline"}
    for what in ("relatives", "everyday", "far"):
        assert default(negatives.build, what) == StreamBody.model_fields[what].default
    recalls = [default(one, "recall") for one in (Session.calibrate, calibration, Calibrated, UnknownDetector)]
    assert {one for one in recalls if one} == {Adaptive().recall} == {0.95}


def test_what_the_help_says_without_a_look_at_the_library_is_what_the_library_does() -> None:
    """A help that imported these would wait seconds for torch."""
    assert output.FIELDS == FIELDS
    texts = {words: run(*words, "--help").stdout for words in (("mine",), ("detect",), ("bench", "learn"))}
    words = {command: " ".join(text.replace("│", " ").split()) for command, text in texts.items()}
    assert re.search(rf"--relatives .*?\(default: {default(negatives.build, 'relatives'):,}\)", words[("mine",)])
    assert f"(default: {detectors.find(detectors.DEFAULT).name})" in words[("detect",)]
    assert all(name in words[("detect",)] for name in ("online", "mcm", "neglabel"))
    assert all(name in words[("bench", "learn")] for name in REGISTRY)
