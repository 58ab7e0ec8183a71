"""A person's word on images: kept apart, undone, and exported."""

from __future__ import annotations

import pytest
import torch

from unseen.discover.review import coco, confirmed_known, correct, fiftyone, latest_corrections, reviewed
from unseen.errors import DataError


def test_a_word_is_kept_apart_and_changes_no_verdict(session):
    keys = session.reservoir.images.keys
    done = correct(session, {keys[0]: " horse ", keys[1]: ""})
    rows = {row.key: row for row in reviewed(done.session)}
    assert (rows[keys[0]].user, rows[keys[1]].user) == ("horse", "unknown")
    assert rows[keys[0]].label == "horse"
    assert [row._replace(user=None) for row in reviewed(done.session)] == reviewed(session)
    assert done.session.snapshot is session.snapshot


def test_the_latest_word_counts(session):
    key = session.reservoir.images.keys[0]
    twice = correct(correct(session, {key: "horse"}).session, {key: "dog"}).session
    assert latest_corrections(twice) == {key: "dog"}


def test_words_on_images_that_are_not_kept_are_refused(session):
    with pytest.raises(DataError, match="expected keys of kept images, got 1 others such as 'nowhere'"):
        correct(session, {"nowhere": "dog"})
    with pytest.raises(DataError, match="got none"):
        correct(session, {})


def test_images_of_known_names_can_calibrate(session):
    kept = session.reservoir.images
    done = correct(session, {kept.keys[0]: "dog", kept.keys[1]: "unicorn", kept.keys[2]: "cat"}).session
    assert torch.equal(confirmed_known(done), kept.features[[0, 2]])


def test_exports_have_one_label_per_image(session):
    key = session.reservoir.images.keys[0]
    rows = reviewed(correct(session, {key: "unicorn"}).session)
    found = coco(rows)
    names = {one["id"]: one["name"] for one in found["categories"]}
    assert names[found["annotations"][0]["category_id"]] == "unicorn"
    assert len(found["images"]) == len(found["annotations"]) == len(rows)
    other = fiftyone(rows)
    assert other["classes"][other["labels"][key]] == "unicorn"
