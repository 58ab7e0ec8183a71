"""States that move to another label space: words keep what was learned of them, wherever they go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from helpers.streams import space, stream
from unseen import LabelSpace, detectors
from unseen.detectors import Detector
from unseen.detectors.state import OldPlaces, flatten, rows_by_old_place
from unseen.errors import SettingError
from unseen.labels.edits import with_name, without_name

CARRIES = ["pooled", "online", "mcm", "neglabel", "energy"]
LABELS = space(8, 60, 24)
Z = stream(LABELS, 120)


def learned(name: str, labels: LabelSpace = LABELS) -> tuple[Detector[Any], Any]:
    detector = detectors.make(name, labels)
    return detector, detector.observe(detector.start(), Z)[1]


def taken_in(state: Any) -> Any:
    """A state without pending samples: carrying takes them in."""
    return state.updated(LABELS) if hasattr(state, "updated") else state


@pytest.mark.parametrize("name", CARRIES)
def test_names_in_another_order_keep_what_was_learned_of_them(name):
    detector, state = learned(name)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    turned = replace(LABELS, names=tuple(LABELS.names[i] for i in order.tolist()), id_anchors=LABELS.id_anchors[order])
    other = detectors.make(name, turned)
    expected, got = detector.score(taken_in(state), Z), other.score(other.transferred(state, detector, Z), Z)
    torch.testing.assert_close(got.score, expected.score)
    torch.testing.assert_close(got.baseline, expected.baseline)
    assert torch.equal(order[got.label], expected.label)


@pytest.mark.parametrize("name", CARRIES)
def test_a_name_that_is_retired_and_promoted_again_has_all_it_had(name):
    detector, state = learned(name)
    less = detectors.make(name, without_name(LABELS, "name 7"))
    back = detectors.make(name, with_name(less.labels, "name 7", LABELS.id_anchors[7]))
    between = less.transferred(state, detector, Z)
    after = back.transferred(between, less, Z)
    assert back.labels.names == LABELS.names
    for one, two in zip(flatten(taken_in(state)).items(), flatten(after).items(), strict=True):
        if "votes" not in one[0] and "fitted" not in one[0] and "moments" not in one[0] and one[0] != "baseline":
            torch.testing.assert_close(one[1], two[1], msg=one[0])


def test_a_detector_that_cannot_carry_says_so():
    detector, state = learned("adaneg")
    with pytest.raises(SettingError, match="expected a detector whose state can move to other names, got 'adaneg'"):
        detectors.make("adaneg", LABELS).transferred(state, detector, Z)


def test_rows_go_where_the_words_have_gone():
    after = with_name(without_name(LABELS, "name 0"), "new", torch.ones(24, dtype=torch.float64))
    places = OldPlaces.of(after, LABELS)
    assert places.known.tolist() == [1, 2, 3, 4, 5, 6, 7, -1]
    assert int(places.negative[-1]) == 0  # the retired name, now a negative
    rows = rows_by_old_place(torch.arange(8.0), torch.arange(100.0, 160.0), places.known, fresh=torch.full((8,), -5.0))
    assert rows.tolist() == [1, 2, 3, 4, 5, 6, 7, -5]
