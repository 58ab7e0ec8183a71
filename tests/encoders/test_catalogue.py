"""Models by name."""

from __future__ import annotations

import importlib.util

import pytest

from unseen import load_encoder
from unseen.encoders import catalogue
from unseen.encoders.offline import encoder as offline
from unseen.errors import MissingExtra, SettingError


@pytest.mark.parametrize(
    ("name", "meant"),
    [("vit-b16", "ViT-B/16"), ("ViT-B16", "ViT-B/16"), ("vit_l_14@336", "ViT-L/14@336"), ("ofline", "offline")],
)
def test_a_misspelt_name_is_told_from_python_and_from_the_command_line(name: str, meant: str) -> None:
    for ask in (load_encoder, catalogue.find_model):
        with pytest.raises(SettingError, match=f"got '{name}'; did you mean {meant}"):
            ask(name)


def test_a_model_is_not_fetched_where_a_package_that_runs_it_is_missing(monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnx" else find(name))
    monkeypatch.setattr(offline, "fetch", lambda report: pytest.fail("fetched"))
    model = catalogue.find_model("offline")
    assert model.lacks == ["onnx"]
    with pytest.raises(MissingExtra, match=r"the package 'onnx' \(extra unseen\[encode\]\)"):
        model.fetch()
    assert catalogue.find_model("ViT-B/16").lacks == []
