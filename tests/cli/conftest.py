"""What tests of commands share: photos of three colours, and an encoder that knows colours only."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.pictures import save_shade
from helpers.tiny_models import COLOURS, NamedColours


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedColours:
    made = NamedColours()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: made)
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with four photos of each of three colours."""
    for i in range(12):
        name = list(COLOURS)[i % 3]
        save_shade(tmp_path / "photos" / f"{i:02d}-{name}.png", COLOURS[name], 3 * i)
    return tmp_path / "photos"


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A folder per class with 15 photos of each known colour."""
    for i in range(30):
        name = ("red", "green")[i % 2]
        save_shade(tmp_path / "known" / name / f"{i:02d}.png", COLOURS[name], 2 * i)
    return tmp_path / "known"
