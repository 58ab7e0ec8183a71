"""Names among WordNet's nouns: found however they are written, beside their relatives, never beside themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.labels.relatives import Placed, everyday_words
from unseen.vocabulary import canonical_spelling, hierarchy

NOUNS = hierarchy()
KINDS = ("animal", "artifact", "food", "plant")
VISIBLE_NAMES = sorted({one.word for one in NOUNS.synsets if one.kind in KINDS and one.use > 20 and one.word.islower()})


@pytest.mark.parametrize(
    ("name", "stands_at", "is_exact"),
    [
        ("Golden_Retrievers", "golden retriever", True),
        ("mice", "mouse", True),
        ("butterflies", "butterfly", True),
        ("firemen", "fireman", True),
        ("ice-cream", "ice cream", True),
        ("IKEA billy shelf", "shelf", False),
        ("cappuccino with latte art", "cappuccino", False),
        ("bowl of soup", "bowl", False),
        ("dogs", "canis familiaris", True),  # no frumps
        ("traffic lights", "traffic light", True),  # no thing for WordNet, but a signal
    ],
)
def test_names_are_found_as_people_write_them(name: str, stands_at: str, is_exact: bool) -> None:
    found = NOUNS.find(name)
    assert found
    assert stands_at in map(canonical_spelling, NOUNS.synsets[found.place].words)
    assert found.is_exact == is_exact


@pytest.mark.parametrize("name", ["qwrtz", "Ford F-150", "", "猫", "with latte art"])
def test_what_is_no_noun_is_not_found_and_has_no_relatives(name: str) -> None:
    assert NOUNS.find(name) is None
    assert NOUNS.path(name) == (name,)
    assert Placed((name,)).relatives(10) == ()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("golden retreiver", "golden retriever"),
        ("expresso", "espresso"),
        ("Labradour retriever", "labrador retriever"),
    ],
)
def test_a_slip_of_the_pen_is_understood(typed: str, meant: str) -> None:
    assert meant in NOUNS.suggestions(typed) or NOUNS.find(typed)


@pytest.mark.parametrize("name", ["espresso", "dogs", "Paris", "qwrtz"])
def test_nothing_is_suggested_for_a_word_or_for_what_is_like_none(name: str) -> None:
    assert NOUNS.suggestions(name) == ()


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["crane", "heron", "stork"], "animal"),
        (["crane", "bulldozer", "excavator"], "artifact"),
        (["mouse", "keyboard", "printer"], "artifact"),
        (["mouse", "rat", "hamster"], "animal"),
        (["hot dog"], "food"),
    ],
)
def test_the_company_of_a_name_says_which_sense_is_meant(names: list[str], kind: str) -> None:
    assert NOUNS.synsets[NOUNS.find_all(names)[names[0]].place].kind == kind


@pytest.mark.parametrize(
    ("names", "expected", "never"),
    [
        (["golden retriever"], {"Labrador retriever", "beagle", "Rottweiler"}, {"dog", "retriever", "hunting dog"}),
        (["dog", "golden retriever"], {"wolf", "fox"}, {"Labrador retriever", "beagle", "puppy dog", "canine"}),
        (["dog", "cat"], {"wolf", "lion"}, {"knackwurst", "andiron"}),  # senses hardly ever meant
        (["robin", "blue jay"], {"nightingale", "magpie", "finch"}, {"bird", "jay", "thrush", "animal"}),
        (["pizza", "burrito"], {"taco", "sushi", "sandwich"}, {"dish", "pizza pie", "food"}),
        (["violin"], {"cello", "guitar", "piano"}, {"fiddle", "stringed instrument", "Stradavarius"}),
        (["sports car", "fire truck"], {"sedan", "ambulance"}, {"car", "truck", "vehicle", "fire engine"}),
        (["IKEA billy shelf"], {"bookshelf"}, {"shelf", "support"}),
        (["cappuccino with latte art"], {"espresso"}, {"cappuccino", "coffee"}),
        (["car", "automobile"], {"truck"}, {"sports car", "motorcar", "vehicle"}),
        (["cats", "cat"], {"lion"}, {"house cat", "tabby"}),
        (["kiwi"], {"emu", "apple", "ivy"}, {"kiwi fruit", "kiwi vine"}),  # a bird, a fruit or a plant
        (["mice"], {"rat"}, {"computer mouse"}),
        (["screwdriver"], {"hammer"}, {"manhattan"}),  # a cocktail too, but who says so means the place
    ],
)
def test_families_have_the_relatives_that_people_expect(names: list[str], expected: set[str], never: set[str]) -> None:
    relatives = {relative.word for relative in Placed(tuple(names)).relatives(300)}
    assert expected <= relatives
    assert never.isdisjoint(relatives)
    assert never.isdisjoint(Placed(tuple(names)).everyday(3000))


def test_the_nearest_relatives_come_first_and_every_name_has_its_turn() -> None:
    relatives = Placed(("golden retriever", "espresso", "sports car")).relatives(6)
    assert [relative.name for relative in relatives] == ["golden retriever", "espresso", "sports car"] * 2
    assert relatives[0] == ("Labrador retriever", "golden retriever", "retriever")


def test_the_likeliest_sense_of_a_name_has_most_relatives() -> None:
    relatives = Placed(("crane",)).relatives(60)
    birds = [relative.parent in ("wader", "aquatic bird") for relative in relatives]
    assert birds == [place % 3 == 2 for place in range(60)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(VISIBLE_NAMES), min_size=1, max_size=12, unique=True), st.integers(0, 400))
def test_no_negative_means_a_name_or_a_kind_of_it_or_what_it_is_a_kind_of(names: list[str], count: int) -> None:
    relatives = [relative.word for relative in Placed(tuple(names)).relatives(count)]
    everyday = Placed(tuple(names)).everyday(count)
    places = [found.place for found in NOUNS.find_all(names).values()]
    family = NOUNS.above(places) | NOUNS.below(places)
    taken = {canonical_spelling(word) for place in family for word in NOUNS.synsets[place].words}
    for words in (relatives, everyday):
        spellings = list(map(canonical_spelling, words))
        assert len(set(spellings)) == len(spellings) <= count
        assert taken.isdisjoint(spellings)
    assert len(everyday) == count
    assert all(word == word.lower() for word in everyday)


def test_proper_names_taxa_and_rude_words_are_no_negatives() -> None:
    words = {
        relative.word
        for relative in Placed(("dog", "cathedral", "sparrow", "rose", "river")).relatives(5000, of_each=5000)
    }
    words |= set(everyday_words()[:5000])
    assert words.isdisjoint({"Westminster Abbey", "Nile", "genus Passer", "family Rosaceae", "bitch", "brood bitch"})
    assert {"car", "man", "hand", "laptop", "giraffe", "cellular phone"} <= words
