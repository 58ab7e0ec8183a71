"""Words that stand beside names among the nouns: relatives, everyday things, and what cannot be a negative of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from typing import NamedTuple

from unseen.vocabulary import canonical_spelling
from unseen.vocabulary.nouns import SHOWN, WIDEST, Found, Hierarchy, Synset, hierarchy, is_called, is_part

EVERYDAY = ("animal", "artifact", "food", "object", "plant")
PEOPLE = (  # the lists of persons and bodies have hundreds of words that nobody wants to be called
    "arm athlete baby back beard boy bride chest child cook dancer doctor ear eye face farmer finger foot girl hair"
    " hand head leg man mouth musician neck nose nurse person player police_officer sailor shoulder singer skin soldier"
    " student teacher thumb toe tongue tooth woman worker"
)
HAS_CAPITALS = ("animal", "artifact", "food", "plant")  # whose relatives are called after places and people: Labrador
TAXON = "taxonomic group"


class Relative(NamedTuple):
    """A word that stands beside a name: both are kinds of `parent`."""

    word: str
    name: str
    parent: str


@dataclass(frozen=True)
class Placed:
    """Names where they stand among the nouns. `nearest` has for names that are none of them a word that is like them.

    >>> [relative.word for relative in Placed(("golden retriever",)).relatives(3)]
    ['Labrador retriever', 'flat-coated retriever', 'curly-coated retriever']
    """

    names: tuple[str, ...]
    nearest: Mapping[str, str] | None = None
    nouns: Hierarchy = field(default_factory=hierarchy)

    @cached_property
    def misspelt(self) -> Mapping[str, str]:
        """The word that each name is taken for which is none, but nearly spelled like one."""
        strange = [name for name in self.names if not self.nouns.has(name)][:100]  # each takes 50 ms
        found = {name: self.nouns.suggestions(name, 1) for name in strange}
        return {name: words[0] for name, words in found.items() if words}

    @cached_property
    def found(self) -> Mapping[str, Found]:
        """Where each name stands that is found; one that is like a word is taken for a kind of it."""
        near = self.nearest or {}
        words = {name: near.get(name) or self.misspelt.get(name, name) for name in self.names}
        found = self.nouns.find_all(words.values())
        return {
            name: found[word]._replace(is_exact=found[word].is_exact and name not in near)
            for name, word in words.items()
            if word in found
        }

    @cached_property
    def same(self) -> Set[int]:
        """The places of what cannot be a negative: what names mean, what they are a kind of, and their kinds.

        Of several senses those count whose first word is the name, or has it: a mouse may be a computer mouse, but a
        dog is no frankfurter.
        """
        meant = {one.place for one in self.found.values()}
        exact = {name: one for name, one in self.found.items() if one.is_exact}
        kinds = {one.place for one in exact.values()}
        for name, one in exact.items():
            first = {place: self.nouns.synsets[place].words[0] for place in one.senses}
            kinds |= {place for place, word in first.items() if is_called(name, word)}
            meant |= {place for place, word in first.items() if is_part(name, word)}
        return self.nouns.above(meant | kinds) | self.nouns.below(kinds)

    @cached_property
    def spellings(self) -> Set[str]:
        """All words that cannot be negatives, whatever else they mean."""
        words = (word for place in self.same for word in self.nouns.synsets[place].words)
        return frozenset(map(canonical_spelling, (*words, *self.names)))

    def relatives(self, count: int, *, besides: Iterable[str] = (), of_each: int = 150) -> tuple[Relative, ...]:
        """At most `count` words that stand beside names, the nearest first; names have as many each as there are."""
        taken = self._taken(besides)
        turns = [islice(self._beside(name, found), of_each) for name, found in self.found.items()]
        chosen: list[Relative] = []
        while turns and len(chosen) < count:
            for turn in list(turns):
                fresh = (one for one in turn if canonical_spelling(one.word) not in taken)
                if (relative := next(fresh, None)) is None:
                    turns.remove(turn)
                else:
                    taken.add(canonical_spelling(relative.word))
                    chosen.append(relative)
        return tuple(chosen[:count])

    def _beside(self, name: str, found: Found) -> Iterator[Relative]:
        """Yield what stands beside a name in any of its senses; the second one has half as much as the first, ..."""
        seen = {*self.same, *found.senses}
        turns = [self._beside_sense(name, place, seen, is_exact=found.is_exact) for place in found.senses]
        for turn in itertools.count(1):
            due = [rank for rank in range(1, len(turns) + 1) if turn % rank == 0]
            fresh = [one for rank in due if (one := next(turns[rank - 1], None))]
            yield from fresh
            if len(due) == len(turns) and not fresh:
                return

    def _beside_sense(self, name: str, place: int, seen: set[int], *, is_exact: bool) -> Iterator[Relative]:
        """Yield the other kinds of the parents of a sense, the most used first, then of theirs."""
        synsets = self.nouns.synsets
        level = synsets[place].parents if is_exact else (place,)
        while level:
            for parent in level:
                if self.nouns.size(parent) > WIDEST:
                    return
                kinds = self.nouns.below([parent])
                fresh = [place for place in kinds - seen if _is_name(synsets[place]) and self.nouns.is_meant(place)]
                seen |= kinds
                for place in sorted(fresh, key=lambda place: (-synsets[place].use, place)):
                    yield Relative(synsets[place].word, name, synsets[parent].word)
            level = tuple(up for parent in level for up in synsets[parent].parents)

    def everyday(self, count: int, *, besides: Iterable[str] = ()) -> tuple[str, ...]:
        """The `count` most used words for things of every day, none of which means the same as a name."""
        return tuple(islice(self._free(everyday_words(), besides), count))

    def others(self, count: int, *, besides: Iterable[str] = ()) -> tuple[str, ...]:
        """About `count` words from everywhere in the vocabulary, none of which means the same as a name."""
        free = list(self._free(visible_words(), besides))
        return tuple(free[row * len(free) // count] for row in range(min(count, len(free))))

    def _free(self, words: Iterable[str], besides: Iterable[str]) -> Iterator[str]:
        taken = self._taken(besides)
        return (word for word in words if canonical_spelling(word) not in taken)

    def _taken(self, besides: Iterable[str]) -> set[str]:
        return {*self.spellings, *map(canonical_spelling, besides)}


@cache
def visible_words() -> tuple[str, ...]:
    """Words for what a photo can show: no names of persons or places, no taxa."""
    nouns = hierarchy()
    taxa = _taxa(nouns)
    shown = (one for place, one in nouns.of_kinds(SHOWN[0]) if place not in taxa and not one.is_instance)
    return tuple(dict.fromkeys(one.word for one in shown if one.use >= 0 and one.word == one.word.lower()))


def every_negative() -> tuple[str, ...]:
    """All words that may become negatives by themselves: everyday ones first, then the most used."""
    nouns = hierarchy()
    taxa = _taxa(nouns)
    named = [one for place, one in nouns.of_kinds(SHOWN[0] + SHOWN[1]) if _is_name(one) and place not in taxa]
    named.sort(key=lambda one: (one.kind not in EVERYDAY, -one.use))
    return tuple(dict.fromkeys([*everyday_words()[:3_000], *(one.word for one in named)]))


@cache
def everyday_words() -> tuple[str, ...]:
    """Words for things of every day, the most used first."""
    nouns = hierarchy()
    taxa = _taxa(nouns)
    used = [synset for place, synset in nouns.of_kinds(EVERYDAY) if synset.use > 0 and place not in taxa]
    people = [nouns.synsets[nouns.senses[word.replace("_", " ")][0]] for word in PEOPLE.split()]
    plain = [one for one in used if one.word == one.word.lower() and not one.is_instance]
    return tuple(dict.fromkeys(one.word for one in sorted(plain + people, key=lambda one: -one.use)))


def _taxa(nouns: Hierarchy) -> Set[int]:
    """The places of genera, families and the like: words of biologists. Found without the spellings of all words."""
    return nouns.below(place for place, one in nouns.of_kinds(("group",)) if TAXON in one.words)


def _is_name(synset: Synset) -> bool:
    """Whether people call a thing by this word."""
    is_written_so = synset.word == synset.word.lower() or synset.kind in HAS_CAPITALS
    return synset.use >= 0 and is_written_so and not synset.is_instance
