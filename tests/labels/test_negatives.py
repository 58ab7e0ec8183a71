"""Negatives of a new label space: relatives, everyday words, far words and one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.tiny_text import HashEncoder, TableEncoder
from unseen import LabelSpace
from unseen.errors import LabelError
from unseen.labels import Origin
from unseen.labels.edits import renamed, with_name, without_name
from unseen.labels.nearest import near_duplicates, nearest_names, nearest_negatives, similar_names
from unseen.labels.prompts import NICE
from unseen.labels.relatives import Placed
from unseen.labels.vectors import word_vectors


def build(cache: Path, *names: str, encoder: Any = None, **options: Any) -> LabelSpace:
    settings: dict[str, Any] = {"relatives": 20, "everyday": 10, "cache": cache} | options
    return LabelSpace.build(names, encoder or HashEncoder(), **settings)


def test_each_negative_knows_where_it_comes_from(tmp_path: Path) -> None:
    space = build(tmp_path, "golden retriever", "espresso", relatives=4, everyday=3, far=2, never=["toy dog"])
    origins = dict(zip(space.negatives, space.origins, strict=True))
    assert list(origins.values())[:3] == [
        Origin("never"),
        Origin("relative", "golden retriever"),
        Origin("relative", "espresso"),
    ]
    assert origins["Labrador retriever"] == Origin("relative", "golden retriever")
    assert space.kinds == {"never": 1, "relative": 4, "everyday": 3, "far": 2}


def test_other_names_encode_only_the_words_that_are_new(tmp_path: Path) -> None:
    build(tmp_path, "cat")
    encoder = HashEncoder()
    build(tmp_path, "violin", encoder=encoder)
    assert encoder.encoded == 1 + 20


def test_every_choice_changes_the_fingerprint(tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [
        {},
        {"relatives": 19},
        {"everyday": 9},
        {"far": 1},
        {"never": ["unicorn"]},
        {"prompt": "a photo of {}."},
    ]
    assert len({build(tmp_path, "cat", **choice).fingerprint for choice in choices}) == len(choices)


def test_far_words_are_those_least_like_the_names(tmp_path: Path) -> None:
    encoder = HashEncoder()
    space = build(tmp_path, "cat", "dog", relatives=0, everyday=0, far=50)
    pool = Placed(("cat", "dog")).others(100)
    vectors = word_vectors(pool, NICE, encoder, cache=tmp_path)
    likeness = dict(zip(pool, (vectors @ space.id_anchors.T).quantile(0.95, dim=1).tolist(), strict=True))
    assert list(space.negatives) == sorted(pool, key=likeness.__getitem__)[:50]


def test_words_of_ones_own_win_over_what_the_hierarchy_says(tmp_path: Path) -> None:
    space = build(tmp_path, "dog", never=["golden retriever", "person"])
    assert space.negatives[:2] == ("golden retriever", "person")
    assert space.negatives.count("person") == 1
    with pytest.raises(LabelError, match="expected negatives that are not known names, got \\['Dog'\\]"):
        build(tmp_path, "dog", never=["Dog"])


@pytest.mark.parametrize("what", ["relatives", "everyday", "far"])
def test_a_number_below_zero_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(LabelError, match=f"expected a number of {what} of at least 0, got -1"):
        build(tmp_path, "cat", **{what: -1})


def test_a_name_that_is_no_noun_stands_beside_the_everyday_word_most_like_it(tmp_path: Path) -> None:
    encoder = TableEncoder({"Ford F-150": 10, "truck": 12, "": 120})
    space = LabelSpace.build(["Ford F-150"], encoder, relatives=200, everyday=1_500, cache=tmp_path)
    assert "truck" not in space.negatives
    assert "vehicle" not in space.negatives
    assert {"fire engine", "garbage truck"} <= set(space.negatives)


def test_a_misspelt_name_is_no_negative_of_itself(tmp_path: Path) -> None:
    space = build(tmp_path, "golden retreiver", "Labrador retriever", relatives=100)
    assert not {"golden retriever", "dog", "retriever"} & set(space.negatives)
    assert "flat-coated retriever" in space.negatives


def test_a_space_with_origins_survives_a_file_and_one_without_keeps_its_fingerprint(tmp_path: Path) -> None:
    space = build(tmp_path, "cat")
    space.save(tmp_path / "s.safetensors")
    loaded = LabelSpace.load(tmp_path / "s.safetensors")
    assert loaded.fingerprint == space.fingerprint
    assert loaded.origins == space.origins
    with pytest.raises(LabelError, match="expected an origin for each of 1 negatives, got 2"):
        LabelSpace(("a",), ("b",), torch.eye(2)[:1], torch.eye(2)[1:], origins=(Origin("far"),) * 2)


def test_edits_keep_origins_in_step(tmp_path: Path) -> None:
    space = build(tmp_path, "cat", "dog")
    word = space.negatives[0]
    more = with_name(space, word, space.ood_anchors[0])
    assert len(more.origins) == len(more.negatives) == len(space.negatives) - 1
    less = without_name(more, "dog")
    assert (less.negatives[-1], less.origins[-1]) == ("dog", Origin("never"))
    other = renamed(space, "cat", "house cat")
    assert {one.name for one in other.origins} == {"house cat", "dog", ""}
    assert len(space.with_negatives(3).origins) == 3


def test_nearest_names_nearest_negatives_and_near_duplicates_are_found() -> None:
    encoder = TableEncoder({"cat": 0, "dog": 40, "kitty": 5, "dogs": 70, "tree": 150})
    words = ("kitty", "dogs", "tree")
    space = LabelSpace(("cat", "dog"), words, encoder.texts(["cat", "dog"]), encoder.texts(words))
    assert nearest_negatives(space)["cat"][0].negative == "kitty"
    assert nearest_names(space)["cat"][0] == "dog"
    assert {(p.name, p.negative) for p in near_duplicates(space)} == {("cat", "kitty"), ("dog", "dogs")}
    assert nearest_negatives(space.with_negatives(0)) == {"cat": [], "dog": []}
    assert similar_names(space) == []
    assert [pair[:2] for pair in similar_names(space, above=0.7)] == [("cat", "dog")]


def test_who_watches_a_terminal_sees_how_far_the_words_are(tmp_path, monkeypatch, capsys):
    quiet = LabelSpace.build(["cat", "dog"], HashEncoder(), relatives=5, everyday=9, cache=tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = LabelSpace.build(["cat", "dog"], HashEncoder(), relatives=5, everyday=9, cache=tmp_path / "shown")
    assert "words" in capsys.readouterr().err
    assert shown.fingerprint == quiet.fingerprint
