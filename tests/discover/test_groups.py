"""Groups of unknown images: what is in them, what they are called, and that their numbers stay."""

from __future__ import annotations

import json

import pytest
import torch

from unseen import Session
from unseen.checkpoint import save
from unseen.discover import Vocabulary, dismiss, group
from unseen.discover.groups import distinct, is_growing, number_clusters
from unseen.errors import StateError
from unseen.labels.relatives import visible_words


def classes(keys) -> list[str]:
    return [key.rsplit("/", 1)[0] for key in keys]


def test_digits_and_ships_are_groups_of_their_own(grouping):
    digits = max(grouping.groups, key=lambda one: sum(kind.startswith("digit") for kind in classes(one.keys)))
    assert sum(kind.startswith("digit") for kind in classes(digits.keys)) > 0.8 * digits.size > 50
    ships = max(grouping.groups, key=lambda one: classes(one.keys).count("ship"))
    assert classes(ships.keys).count("ship") > 0.8 * ships.size


def test_every_unknown_image_is_in_at_most_one_group_and_no_known_one(grouping, session):
    keys = [key for one in grouping.groups for key in one.keys]
    kept = session.reservoir.images
    unknown = {key for key, known in zip(kept.keys, kept.known.tolist(), strict=True) if not known}
    assert len(keys) == len(set(keys)) == grouping.grouped
    assert set(keys) <= unknown
    assert grouping.unknown == len(unknown)


def test_a_group_says_when_it_was_seen_and_shows_central_images(grouping, session, pack):
    one = grouping.groups[0]
    places = sorted(pack.keys.index(key) + 1 for key in one.keys)
    assert (one.first, one.last, one.size) == (places[0], places[-1], len(places))
    assert set(one.exemplars) <= set(one.keys)
    assert 0 < one.tightness <= 1
    assert json.loads(json.dumps(one.row()))["suggestions"][0]["word"]


def test_numbers_stay_while_the_stream_goes_on(session, pack):
    run = Session(pack.space)
    run.observe(pack.z[:300], pack.keys[:300])
    early = group(run)
    early.session.observe(pack.z[300:500], pack.keys[300:500])
    late = {one.number: set(one.keys) for one in group(early.session).groups}
    largest = early.groups[:3]
    for one in largest:
        assert len(set(one.keys) & late[one.number]) > 0.5 * one.size


def test_numbers_go_to_the_cluster_that_shares_most_and_are_used_once():
    before = torch.tensor([1, 1, 1, 2, 2, 0, 0, 0])
    split = [torch.tensor([0, 1]), torch.tensor([2, 5, 6]), torch.tensor([3, 4, 7])]
    assert number_clusters(split, before, 3) == ([1, 3, 2], 4)
    merged = [torch.tensor([0, 1, 2, 3, 4])]
    assert number_clusters(merged, before, 3) == ([1], 3)
    assert number_clusters([], before, 3) == ([], 3)


def test_copies_are_folded(session):
    z = session.reservoir.images.features[:3]
    assert distinct(torch.cat([z, z, z])).tolist() == [0, 1, 2]
    images, unknown = session.reservoir.images, (~session.reservoir.images.known).nonzero().flatten()
    copies = session.reservoir.with_images(images.select(unknown[:3].repeat(4)))
    found = group(session.at(reservoir=copies), smallest=1)
    assert found.groups
    assert all(one.distinct < one.size for one in found.groups)


def test_a_group_whose_images_come_of_late_is_growing():
    even, late = torch.arange(0, 4000, 40), torch.arange(3700, 4000, 10)
    assert not is_growing(even, 4000)
    assert is_growing(late, 4000)
    assert not is_growing(late[:5], 4000)
    assert not is_growing(torch.arange(200), 400)  # too early to tell
    assert not is_growing(torch.arange(10, 520, 8), 520)  # eight images came before the latest 512
    assert is_growing(torch.arange(520, 1024, 8), 1024)


def test_suggested_names_come_from_the_vocabulary_and_are_no_known_names(grouping, session):
    labels = session.detector.labels
    words = Vocabulary((*labels.names, "ship"), torch.cat([labels.id_anchors, labels.id_anchors[:1]]))
    for one in group(session, words).groups:
        assert [word.word for word in one.suggestions] == ["ship"]
    assert not set(labels.names) & {word.word for one in grouping.groups for word in one.suggestions}


def test_the_words_for_groups_name_no_person_and_no_place():
    words = set(visible_words())
    assert {"sea urchin", "espresso", "fire engine"} <= words
    assert not {"Einstein", "Albert Einstein", "Paris", "doctor", "genus Felis"} & words
    assert all(word == word.lower() for word in words)


def test_a_dismissed_group_is_not_shown_again(grouping):
    gone = grouping.groups[0]
    edited = dismiss(grouping.session, gone.number)
    after = group(edited.session)
    assert gone.number not in [one.number for one in after.groups]
    with pytest.raises(StateError, match="which was dismissed before"):
        dismiss(edited.session, gone.number)


def test_nothing_to_group_is_an_error_that_says_why(pack):
    with pytest.raises(StateError, match="expected unknown images, got none among 0"):
        group(Session(pack.space))
    with pytest.raises(StateError, match="got one with keep=0"):
        group(Session(pack.space, keep=0))


def test_a_state_without_a_reservoir_says_so(session, tmp_path):
    save(tmp_path / "state.safetensors", session.snapshot._asdict(), session.identity)
    old = Session.load(tmp_path / "state.safetensors", session.detector.labels)
    with pytest.raises(StateError, match="one of 500 images without a reservoir"):
        group(old)
