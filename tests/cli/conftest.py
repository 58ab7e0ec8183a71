"""What tests of commands share: photos of three colours, and an encoder that knows colours only."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image as Pillow

from helpers.tiny_models import COLOURS, NamedColours
from unseen.cli import calibrate, label_space
from unseen.cli import detect as command
from unseen.labels import Corpus


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedColours:
    made = NamedColours()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    for module in (command, calibrate):
        monkeypatch.setattr(module, "load_encoder", lambda name, **options: made)
    monkeypatch.setattr(
        label_space, "wordnet", lambda: Corpus("words", {"noun.own": tuple(f"word {i}" for i in range(40))})
    )
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(12):
        name = list(COLOURS)[i % 3]
        shade = tuple(min(255, c + 3 * i) for c in COLOURS[name])
        Pillow.new("RGB", (20, 16), shade).save(folder / f"{i:02d}-{name}.png")
    return folder
