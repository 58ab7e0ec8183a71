"""Edits of label spaces."""

from __future__ import annotations

import pytest
import torch

from helpers.streams import space, unit
from unseen.errors import LabelError
from unseen.labels.edits import renamed, with_name, without_name


def test_a_new_name_stands_last_and_negatives_that_say_the_same_step_aside():
    labels = space()
    after = with_name(labels, "Negative-3", labels.ood_anchors[7])
    assert after.names == (*labels.names, "Negative-3")
    assert torch.equal(after.id_anchors[-1], labels.ood_anchors[7])
    assert set(labels.negatives) - set(after.negatives) == {"negative 3", "negative 7"}  # by spelling, by vector


@pytest.mark.parametrize("name", ["sea\x00urchin", "a\nb", "half \ud800"])
def test_a_name_that_cannot_be_written_is_refused(name):
    with pytest.raises(LabelError, match="with control characters; remove them"):
        with_name(space(), name, unit(16, seed=9))
    with pytest.raises(LabelError, match="with control characters; remove them"):
        renamed(space(), "name 1", name)


@pytest.mark.parametrize("name", ["Seeigel für Öl", "ウニ", "قنفذ البحر", "🦔\u200d🌊"])
def test_a_name_may_be_of_any_script(name):
    assert with_name(space(), f" {name} ", unit(16, seed=9)).names[-1] == name


def test_negatives_that_describe_the_images_of_a_name_step_aside():
    labels = space()
    images = labels.ood_anchors[5:6]
    assert "negative 5" in with_name(labels, "new", unit(16, seed=9)).negatives
    assert "negative 5" not in with_name(labels, "new", unit(16, seed=9), images).negatives


def test_a_name_that_is_retired_and_promoted_again_is_where_it_was():
    labels = space()
    after = without_name(labels, "name 5")
    assert after.negatives[-1] == "name 5"
    again = with_name(after, "name 5", labels.id_anchors[5])
    assert again.names == labels.names
    assert again.fingerprint == labels.fingerprint


def test_the_last_name_cannot_be_retired():
    with pytest.raises(LabelError, match="expected at least two known names, got 'name 0' alone"):
        without_name(space(1), "name 0")


def test_a_rename_changes_the_name_only():
    labels = space()
    after = renamed(labels, "name 1", "other")
    assert after.names[1] == "other"
    assert torch.equal(after.id_anchors, labels.id_anchors)
    assert after.negatives == labels.negatives
    with pytest.raises(LabelError, match="expected a name, got a blank"):
        renamed(labels, "name 1", " ")
