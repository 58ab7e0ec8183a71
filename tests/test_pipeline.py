"""unseen.pipeline: what a zero-shot pipeline returns, with "unknown"."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image as Pillow

import unseen
from helpers.pictures import flat, save_shade
from helpers.tiny_models import COLOURS, NamedColours


@pytest.fixture
def classify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    space = unseen.LabelSpace.build(["red", "green"], model := NamedColours(), everyday=40, never=["blue"])
    return unseen.pipeline(space, encoder=model)


def test_one_image_in_any_form_gets_a_list_of_labels_with_the_verdict_first(classify, tmp_path):
    save_shade(tmp_path / "a.png", COLOURS["red"])
    for form in (tmp_path / "a.png", str(tmp_path / "a.png"), flat(COLOURS["red"])):
        found = classify(form)
        assert {one["label"] for one in found} == {"red", "green", "unknown"}
        assert sum(one["score"] for one in found) == pytest.approx(1)
        scores = {one["label"]: one["score"] for one in found}
        assert scores["red"] > scores["green"]
        assert [one["score"] for one in found[1:]] == sorted((one["score"] for one in found[1:]), reverse=True)
    verdict = classify.session.score([flat(COLOURS["red"])])[0]
    assert classify(flat(COLOURS["red"]))[0]["label"] == (verdict.name or "unknown")


def test_lists_and_generators_get_one_list_of_labels_for_each_image(classify):
    pictures = [flat(colour) for colour in COLOURS.values()] * 20
    found = classify(pictures)
    assert len(found) == 60
    assert int(classify.session.snapshot.tally.seen) == 60
    lazy = classify(picture for picture in pictures)
    assert not isinstance(lazy, list)
    assert len(list(lazy)) == 60
    assert int(classify.session.snapshot.tally.seen) == 120


def test_what_only_judges_learns_nothing_and_a_label_space_will_do(classify):
    space = classify.session.detector.labels
    frozen = unseen.pipeline(space, encoder=NamedColours(), learn=False)
    assert frozen(Pillow.new("RGB", (4, 4), COLOURS["red"])) == frozen(Pillow.new("RGB", (4, 4), COLOURS["red"]))
    assert int(frozen.session.snapshot.tally.seen) == 0
