"""One default for encoder, negatives, prompt, detector, temperature, threshold and recall from every door."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from helpers.pictures import flat
from helpers.tiny_models import NamedColours
from unseen import LabelSpace, Session
from unseen.cli import app, calibrate, encode, label_space, serve
from unseen.cli import detect as detect_command
from unseen.cli import mine as mine_command
from unseen.cli.session import SessionOptions
from unseen.estimator import UnknownDetector
from unseen.labels import Corpus, miners, mining
from unseen.serve.http.schema import StreamBody
from unseen.serve.settings import Limits
from unseen.serve.stream.config import StreamConfig
from unseen.serve.work import encoding
from unseen.session import SessionSpec
from unseen.threshold import Adaptive, Calibrated, calibration
from unseen_bench.cli import learn

NAMES = ["red", "green"]
LABELS = [word for name in NAMES for word in ("--label", name)]
WORDS = Corpus("words", {"noun.own": tuple(f"word {i:03}" for i in range(200))})


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = NamedColours()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    for module in (mine_command, detect_command, encoding):
        monkeypatch.setattr(module, "load_encoder", lambda name, **options: made)
    rule = replace(miners.MINERS[miners.DEFAULT_MINER], corpus=lambda: WORDS)
    monkeypatch.setitem(miners.MINERS, miners.DEFAULT_MINER, rule)
    monkeypatch.setattr(label_space, "wordnet", lambda: WORDS)
    return made


def run(*words: str) -> None:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output


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
    estimator = UnknownDetector(encoder).fit(NAMES)
    spaces = {
        "unseen mine": LabelSpace.load("mined.safetensors"),
        "unseen detect": LabelSpace.load("detect.space.safetensors"),
        "HTTP": asyncio.run(encoding.ImageEncoder("hash", Limits()).space("me", body.names, body.negatives)),
        "scikit-learn": estimator.session_.detector.labels,
    }
    assert {door: one.fingerprint for door, one in spaces.items()} == dict.fromkeys(spaces, space.fingerprint)
    sessions = {
        "unseen detect": Session.load("detect.safetensors", space),
        "unseen score": Session.load("score.safetensors", space),
        "unseen score streams": SessionOptions(None, None, None).spec(space).build(),
        "Ray": SessionSpec(space).build(),
        "HTTP": served(space),
        "scikit-learn": estimator.session_,
    }
    assert {door: one.identity for door, one in sessions.items()} == dict.fromkeys(sessions, Session(space).identity)


def default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def test_options_that_several_doors_have_start_alike() -> None:
    encoders = [default(one, "encoder") for one in (mine_command.mine, encode.encode, serve.serve, UnknownDetector)]
    assert {*encoders, default(detect_command.detect, "encoder") or "offline"} == {"offline"}
    counts = [
        default(one, "negatives") for one in (detect_command.detect, learn.learn, mine_command.mine, mining.build)
    ]
    assert {*counts, StreamBody.model_fields["negatives"].default} == {mining.NEGATIVES}
    recalls = [default(one, "recall") for one in (Session.calibrate, calibration, Calibrated, UnknownDetector)]
    assert {*recalls, calibrate.RECALL} == {Adaptive().recall} == {0.95}


def test_fewer_negatives_come_from_fewer_words_in_commands_as_in_python(encoder: Any) -> None:
    detected = label_space.mine_space(NAMES, encoder, negatives=40, vocabulary=None)
    assert detected.fingerprint == LabelSpace.build(NAMES, encoder, negatives=40).fingerprint
    assert len(detected.negatives) == 40  # of twice as many words
