"""Promoting, renaming, retiring: names change, what was learned goes on, earlier images are judged again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from unseen import Session, demo, detectors
from unseen.discover import promote, rename, retire
from unseen.discover.edit import anchor_near_images
from unseen.errors import LabelError, StateError

WORDS = demo.vocabulary()
SHIP, TRUCK = (WORDS.vectors[WORDS.words.index(word)] for word in ("ship", "truck"))


@pytest.fixture(scope="module")
def ships(grouping):
    return max(grouping.groups, key=lambda one: sum(key.startswith("ship/") for key in one.keys))


@pytest.fixture(scope="module")
def promoted(grouping, ships):
    return promote(grouping.session, ships.number, "ship", SHIP)


def test_later_images_of_the_group_are_known_by_its_name_and_others_stay_as_they_were(promoted, grouping, pack):
    z, keys = pack.z[500:], pack.keys[500:]
    before, after = grouping.session.score(z), promoted.session.score(z)
    is_ship = torch.tensor([key.startswith("ship/") for key in keys])
    nearest, called = (torch.tensor([getattr(one, field) == "ship" for one in after]) for field in ("nearest", "name"))
    assert float(nearest[is_ship].float().mean()) > 0.9
    assert float(called[is_ship].float().mean()) > 0.7
    animals = torch.tensor([key.rsplit("/", 1)[0] in pack.space.names for key in keys])
    same = torch.tensor([one.name == two.name for one, two in zip(before, after, strict=True)])
    assert float(same[animals].float().mean()) > 0.9


def test_what_was_learned_goes_on(promoted, grouping):
    before, after = grouping.session.snapshot, promoted.session.snapshot
    assert after.tally == before.tally
    assert abs(float(after.threshold.counts.sum() - before.threshold.counts.sum())) < 1e-9  # moved, none lost
    assert torch.equal(
        after.detector.sums.known.total[:-1], before.detector.updated(grouping.session.detector.labels).sums.known.total
    )
    assert float(after.detector.sums.known.images[-1]) == 0  # "ship" was no negative here


def test_the_session_goes_on_after_a_promotion_and_survives_a_checkpoint(promoted, pack, tmp_path):
    promoted.session.save(tmp_path / "state.safetensors")
    labels = promoted.session.detector.labels
    again = Session.load(tmp_path / "state.safetensors", labels)
    one = promoted.session.at(promoted.session.snapshot).observe(pack.z[500:])
    two = again.observe(pack.z[500:])
    assert torch.equal(one.margin, two.margin)
    assert again.reservoir.journal[-1]["verb"] == "promote"


def test_a_text_that_is_near_enough_to_its_images_stays_and_another_moves_towards_them(session, ships, grouping):
    kept = grouping.session.reservoir.images
    member = kept.group == ships.number
    images = kept.features[member]
    near = normalize(images.mean(0), dim=0)
    torch.testing.assert_close(anchor_near_images(grouping.session, member, near), near)
    far = session.detector.labels.ood_anchors[0].float()
    moved = anchor_near_images(grouping.session, member, far)
    assert float((images @ moved).mean()) > float((images @ far).mean())


def test_a_name_moves_no_farther_than_other_images_allow(grouping, ships):
    kept = grouping.session.reservoir.images
    member = kept.group == ships.number
    torch.testing.assert_close(anchor_near_images(grouping.session, member, SHIP, taken=-1.0), SHIP)


def test_names_that_exist_blank_names_and_groups_that_do_not_are_refused(grouping, ships, promoted):
    with pytest.raises(LabelError, match="expected a new name, got 'CAT', which is known as 'cat'"):
        promote(grouping.session, ships.number, "CAT", SHIP)
    with pytest.raises(LabelError, match="expected a name, got a blank"):
        promote(grouping.session, ships.number, "  ", SHIP)
    with pytest.raises(StateError, match=r"expected the number of a group, got 999; there are 1, 2"):
        promote(grouping.session, 999, "ship", SHIP)
    with pytest.raises(StateError, match=r"expected a group's number or an image's key, got 'nowhere\.jpg'"):
        promote(grouping.session, "nowhere.jpg", "ship", SHIP)


def test_a_promotion_says_which_names_mean_nearly_the_same(grouping, ships):
    labels = grouping.session.detector.labels
    assert promote(grouping.session, ships.number, "ship", SHIP).record["similar_names"] == []
    assert promote(grouping.session, ships.number, "cats", SHIP).record["similar_names"] == ["cat"]
    assert promote(grouping.session, ships.number, "canine", labels.id_anchors[0]).record["similar_names"] == [
        labels.names[0]
    ]


def test_a_retired_name_is_a_negative_and_its_images_are_judged_again(promoted, ships):
    done = retire(promoted.session, "ship")
    labels = done.session.detector.labels
    assert "ship" not in labels.names
    assert labels.negatives[-1] == "ship"
    kept = done.session.reservoir.images
    mine = torch.tensor([key in ships.keys for key in kept.keys])
    assert float((~kept.known[mine]).float().mean()) > 0.9
    with pytest.raises(LabelError, match="expected a known name, got 'ship'; there are"):
        retire(done.session, "ship")


def test_a_renamed_name_keeps_its_vector_and_all_that_was_learned(session, pack):
    done = rename(session, "cat", "kitty")
    labels = done.session.detector.labels
    place = pack.space.names.index("cat")
    assert labels.names[place] == "kitty"
    assert torch.equal(labels.id_anchors, pack.space.id_anchors)
    taken_in = session.snapshot._replace(detector=session.snapshot.detector.updated(pack.space))
    one, two = session.at(taken_in).score(pack.z[500:]), done.session.score(pack.z[500:])
    torch.testing.assert_close(one.margin, two.margin, atol=1e-4, rtol=1e-4)
    assert torch.equal(one.label, two.label)
    with pytest.raises(LabelError, match="got 'dog', which is known as 'dog'"):
        rename(session, "cat", "dog")


@pytest.mark.parametrize("name", ["mcm", "neglabel", "online", "adaneg"])
def test_every_detector_goes_on_some_by_their_state_others_from_the_kept_images(name, pack):
    run = Session(detectors.make(name, pack.space))
    run.observe(pack.z[:150], pack.keys[:150])
    kept = run.reservoir.images
    key = kept.select(~kept.known).keys[0]
    done = promote(run, key, "something else", SHIP)
    assert done.record["carried"] == (name != "adaneg")
    assert len(done.session.detector.labels.names) == len(pack.space.names) + 1
    assert len(done.session.observe(pack.z[150:170])) == 20


@pytest.mark.parametrize("text", [SHIP[:10], SHIP[None], torch.zeros(512), torch.full((512,), torch.nan)])
def test_a_text_vector_that_is_no_direction_is_refused(grouping, ships, text):
    with pytest.raises(LabelError, match=r"expected the text vector of one name, of shape \[512\]"):
        promote(grouping.session, ships.number, "ship", text)


def test_a_group_without_unknown_images_left_says_what_became_of_it(promoted, ships):
    session = promoted.session
    everything_known = replace(session.reservoir.images, known=torch.ones_like(session.reservoir.images.known))
    session = session.at(session.snapshot, reservoir=session.reservoir.with_images(everything_known))
    with pytest.raises(StateError, match="was promoted to 'ship' before"):
        promote(session, ships.number, "boat", SHIP)
