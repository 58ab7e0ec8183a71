"""One default for negatives, prompt, detector and threshold, whichever door a user comes through."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from helpers.tiny_text import HashEncoder
from unseen import LabelSpace, Session
from unseen.cli import app, label_space
from unseen.cli import mine as mine_command
from unseen.cli.session import SessionOptions
from unseen.estimator import UnknownDetector
from unseen.labels import Corpus, miners, mining
from unseen.serve.http.schema import StreamBody
from unseen.serve.settings import Limits
from unseen.serve.stream.config import StreamConfig
from unseen.serve.work import encoding

NAMES = ["cat", "dog"]
WORDS = Corpus("words", {"noun.own": tuple(f"word {i:03}" for i in range(200))})


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = HashEncoder()
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    for module in (mine_command, encoding):
        monkeypatch.setattr(module, "load_encoder", lambda name: made)
    rule = replace(miners.MINERS[miners.DEFAULT_MINER], corpus=lambda: WORDS)
    monkeypatch.setitem(miners.MINERS, miners.DEFAULT_MINER, rule)
    monkeypatch.setattr(label_space, "wordnet", lambda: WORDS)
    return made


def served(encoder: Any) -> LabelSpace:
    body = StreamBody.model_validate({"names": NAMES})
    return asyncio.run(encoding.ImageEncoder("hash", Limits()).space("me", body.names, body.negatives))


def mined(folder: Path) -> LabelSpace:
    options = [word for name in NAMES for word in ("--label", name)]
    result = CliRunner().invoke(app, ["mine", *options, "-o", str(folder / "space.safetensors")])
    assert result.exit_code == 0, result.output
    return LabelSpace.load(folder / "space.safetensors")


@pytest.mark.parametrize("most", [mining.NEGATIVES, 40])
def test_the_label_space_is_the_same_from_every_door(tmp_path: Path, encoder: Any, most: int) -> None:
    detected = label_space.mine_space(NAMES, encoder, negatives=most, vocabulary=None)
    assert detected.fingerprint == LabelSpace.build(NAMES, encoder, negatives=most).fingerprint
    if most == mining.NEGATIVES:
        fitted = UnknownDetector(encoder).fit(NAMES).session_.detector.labels
        found = [LabelSpace.build(NAMES, encoder), mined(tmp_path), served(encoder), fitted]
        assert {space.fingerprint for space in found} == {detected.fingerprint}
    else:
        assert len(detected.negatives) == most  # of twice as many words


def test_detector_and_threshold_are_the_same_from_every_door(encoder: Any) -> None:
    space = LabelSpace.build(NAMES, encoder)
    python = Session(space).identity
    assert SessionOptions(None, None, None).session(space, None).identity == python
    body = StreamBody.model_validate({"names": NAMES})
    config = StreamConfig("", "", "me", body.detector, body.settings, body.threshold.kind, body.threshold.settings)
    assert config.spec(space).build().identity == python
    assert UnknownDetector(encoder).fit(space).session_.identity == python
