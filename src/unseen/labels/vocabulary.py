"""WordNet's nouns, what is a kind of what, and how much each word is used: where names stand beside their relatives.

A synset is a set of words that mean the same; its place is its number in the file of `tools/build_vocabulary.py`.
"""

from __future__ import annotations

import difflib
import gzip
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from unseen.labels.names import canonical_spelling

FILE = Path(__file__).with_name("vocabulary.txt.gz")

# lists of what a photo can show: senses of a name are looked for in the first, then in those people seldom mean, ...
SHOWN = (
    ("animal", "artifact", "food", "object", "phenomenon", "plant", "substance"),
    ("body", "person"),
    ("Tops", "act", "communication", "event", "group", "location", "possession", "shape", "time"),
)
EVERYDAY = ("animal", "artifact", "food", "object", "plant")
PEOPLE = (  # the lists of persons and bodies have hundreds of words that nobody wants to be called
    "arm athlete baby back beard boy bride chest child cook dancer doctor ear eye face farmer finger foot girl hair"
    " hand head leg man mouth musician neck nose nurse person player police_officer sailor shoulder singer skin soldier"
    " student teacher thumb toe tongue tooth woman worker"
)
HAS_CAPITALS = ("animal", "artifact", "food", "plant")  # whose relatives are called after places and people: Labrador
TAXON = "taxonomic group"
HEAD_ENDS = re.compile(r"\b(?:with|without|of|in|on|at|for|from|by|and|or|to|under|behind|near)\b|[,(:/]")
SINGULARS = (("ies", "y"), ("ves", "f"), ("ves", "fe"), ("men", "man"), ("es", ""), ("s", ""))
IRREGULAR = dict(
    pair.split(":")
    for pair in [
        "mice:mouse",
        "geese:goose",
        "people:person",
        "children:child",
        "feet:foot",
        "teeth:tooth",
        "oxen:ox",
        "lice:louse",
        "dice:die",
        "fungi:fungus",
        "cacti:cactus",
    ]
)
RARER = 10  # of use: WordNet's first word is the plain one, but it says cellular telephone
ALIKE = 0.85  # share of letters in common from which a word may be a slip of the pen for another
WIDEST = 3000  # kinds that an ancestor may have: an instrument has relatives, an artefact is just a thing


class Synset(NamedTuple):
    """Words that mean the same, as WordNet orders them."""

    kind: str  # the list that has it, without "noun."
    words: tuple[str, ...]
    numbers: tuple[int, ...]  # of the sense that each word has here, from 1
    uses: tuple[int, ...]  # how much each is used so: ten more are ten times more; -1 where it is rude
    parents: tuple[int, ...]
    is_instance: bool  # of a class, as Paris is one of a city

    @property
    def use(self) -> int:
        """How much its most used word is used."""
        return max(self.uses)

    @property
    def word(self) -> str:
        """Its first word that is not ten times less used than another."""
        return next(word for word, use in zip(self.words, self.uses, strict=True) if use >= self.use - RARER)


class Found(NamedTuple):
    """Where a name stands among the nouns."""

    place: int  # of the sense that is meant
    senses: tuple[int, ...]  # places of all senses that a photo can show
    is_exact: bool  # a billy shelf is none of the nouns, but a kind of shelf


class Relative(NamedTuple):
    """A word that stands beside a name: both are kinds of `parent`."""

    word: str
    name: str
    parent: str


@dataclass(frozen=True)
class Hierarchy:
    """Synsets, each with the places of what it is a kind of."""

    synsets: Sequence[Synset]

    @cached_property
    def senses(self) -> Mapping[str, Sequence[int]]:
        """The places of each spelling, in the order of WordNet's senses."""
        found = defaultdict(list)
        for place, synset in enumerate(self.synsets):
            for word, number in zip(synset.words, synset.numbers, strict=True):
                found[canonical_spelling(word)].append((number, place))
        return {word: [place for _, place in sorted(places)] for word, places in found.items()}

    @cached_property
    def children(self) -> Mapping[int, Sequence[int]]:
        """The places of what is a kind of each place."""
        found = defaultdict(list)
        for place, synset in enumerate(self.synsets):
            for parent in synset.parents:
                found[parent].append(place)
        return dict(found)

    @cached_property
    def taxa(self) -> Set[int]:
        """The places of genera, families and the like: words of biologists."""
        return self.below(self.senses.get(TAXON, ()))

    def find(self, name: str) -> Found | None:
        """Where a name stands: the first sense that a photo can show."""
        return self.find_all([name]).get(name)

    def find_all(self, names: Iterable[str]) -> dict[str, Found]:
        """Where each name stands that is found: of several senses the one that has most to do with the other names."""
        found = {name: one for name in names if (one := self._found(name))}
        families = {place: self._families(place) for one in found.values() for place in one.senses}
        company = Counter(
            family for one in found.values() for family in set().union(*(families[place] for place in one.senses))
        )

        def weight(sense: tuple[int, int]) -> tuple[int, float]:
            rank, place = sense
            return sum(company[one] - 1 for one in families[place]), math.log(1 + self._size(place)) / rank

        return {
            name: one._replace(place=max(enumerate(one.senses, 1), key=weight)[1]) if len(one.senses) > 1 else one
            for name, one in found.items()
        }

    def _families(self, place: int) -> frozenset[int]:
        """What a place is a kind of, as far as its kinds are a family."""
        return frozenset(above for above in self.above([place]) if self._size(above) <= WIDEST)

    @cached_property
    def _sizes(self) -> dict[int, int]:
        return {}

    def _size(self, place: int) -> int:
        if place not in self._sizes:
            self._sizes[place] = len(self.below([place]))
        return self._sizes[place]

    def _found(self, name: str) -> Found | None:
        for phrase, is_exact in _phrases(name):
            places = next((self.senses[one] for one in _singulars(phrase) if one in self.senses), [])
            if shown := self._shown(places):
                return Found(shown[0], tuple(shown), is_exact)
        return None

    def _shown(self, places: Sequence[int]) -> list[int]:
        """The senses that a photo can show, of the first lists that have any."""
        for kinds in SHOWN:
            if shown := [p for p in places if self.synsets[p].kind in kinds and not self.synsets[p].is_instance]:
                return shown
        return []

    def suggestions(self, name: str, count: int = 3) -> tuple[str, ...]:
        """The words that a name may be a slip of the pen for, likeliest first; none where it is a word itself."""
        wanted = canonical_spelling(name)
        if any(one in self.senses for one in _singulars(wanted)):
            return ()
        # few slip at the first letter, and comparing with all words would take a second
        near = [word for word in self.senses if word[:1] == wanted[:1] and abs(len(word) - len(wanted)) <= 2]
        return tuple(difflib.get_close_matches(wanted, near, count, ALIKE))

    def above(self, places: Iterable[int]) -> frozenset[int]:
        """These places and those of everything that they are a kind of."""
        return _closure(places, lambda place: self.synsets[place].parents)

    def below(self, places: Iterable[int]) -> frozenset[int]:
        """These places and those of everything that is a kind of them."""
        return _closure(places, lambda place: self.children.get(place, ()))

    def path(self, name: str) -> tuple[str, ...]:
        """A name, and what it is a kind of, up to the most general word."""
        if (found := self.find(name)) is None:
            return (name,)
        path = [found.place]
        while parents := self.synsets[path[-1]].parents:
            path.append(parents[0])
        words = [self.synsets[place].word for place in path]
        return tuple(words if found.is_exact else (name, *words))

    def same(self, names: Iterable[str]) -> frozenset[int]:
        """The places of what cannot be a negative: what names mean, what they are a kind of, and their kinds.

        Of several senses those count that the name is the first word of: a frankfurter may be called a dog.
        """
        found = self.find_all(names)
        meant = {one.place for one in found.values()}
        exact = {name: one for name, one in found.items() if one.is_exact}
        kinds = {one.place for one in exact.values()}
        for name, one in exact.items():
            kinds |= {place for place in one.senses if _is_called(name, self.synsets[place].words[0])}
        return self.above(meant | kinds) | self.below(kinds)

    def relatives(self, names: Sequence[str], count: int) -> tuple[Relative, ...]:
        """At most `count` words that stand beside names, the nearest first, as many for each name as there are.

        >>> [relative.word for relative in hierarchy().relatives(["golden retriever"], 3)]
        ['Labrador retriever', 'flat-coated retriever', 'curly-coated retriever']
        """
        same = self.same(names)
        taken = self._spellings(same, names)
        turns = [self._beside(name, found, same) for name, found in self.find_all(names).items()]
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

    def _beside(self, name: str, found: Found, same: Set[int]) -> Iterator[Relative]:
        """Yield what stands beside a name: the other kinds of its parents, the most used first, then of theirs."""
        seen = set(same)
        level = self.synsets[found.place].parents if found.is_exact else (found.place,)
        while level:
            for parent in level:
                if self._size(parent) > WIDEST:
                    return
                kinds = self.below([parent])
                fresh = [place for place in kinds - seen if self._is_name(self.synsets[place])]
                for place in sorted(fresh, key=lambda place: (-self.synsets[place].use, place)):
                    yield Relative(self.synsets[place].word, name, self.synsets[parent].word)
                seen |= kinds
            level = tuple(up for parent in level for up in self.synsets[parent].parents)

    def _is_name(self, synset: Synset) -> bool:
        """Whether people call a thing by this word."""
        is_written_so = synset.word == synset.word.lower() or synset.kind in HAS_CAPITALS
        return synset.use >= 0 and is_written_so and not synset.is_instance

    @cached_property
    def everyday_places(self) -> Sequence[int]:
        """The places of everyday things, the most used first."""
        places = [place for place, synset in enumerate(self.synsets) if synset.kind in EVERYDAY]
        plain = [place for place in places if self._is_plain(self.synsets[place]) and place not in self.taxa]
        people = [self.senses[word.replace("_", " ")][0] for word in PEOPLE.split() if word in self.senses]
        return sorted(plain + people, key=lambda place: -self.synsets[place].use)

    def _is_plain(self, synset: Synset) -> bool:
        return synset.word == synset.word.lower() and synset.use > 0 and not synset.is_instance

    def everyday(self, count: int, names: Sequence[str] = ()) -> tuple[str, ...]:
        """The `count` most used words for things of every day, none of which means the same as a name."""
        taken = self._spellings(self.same(names), names)
        words = dict.fromkeys(self.synsets[place].word for place in self.everyday_places)
        return tuple(islice((word for word in words if canonical_spelling(word) not in taken), count))

    def _spellings(self, same: Iterable[int], names: Iterable[str]) -> set[str]:
        """All words that cannot be negatives, whatever else they mean."""
        words = (word for place in same for word in self.synsets[place].words)
        return set(map(canonical_spelling, (*words, *names)))


def _closure(places: Iterable[int], step: Callable[[int], Iterable[int]]) -> frozenset[int]:
    seen, stack = set(), list(places)
    while stack:
        if (place := stack.pop()) not in seen:
            seen.add(place)
            stack.extend(step(place))
    return frozenset(seen)


def _phrases(name: str) -> Iterator[tuple[str, bool]]:
    """Yield a name, then what it may be a kind of: the last words before "with", "of" and the like.

    >>> list(_phrases("cup of latte art"))
    [('cup of latte art', True), ('cup', False)]
    """
    whole = canonical_spelling(name)
    yield whole, True
    words = HEAD_ENDS.split(whole)[0].split()
    yield from ((" ".join(words[start:]), False) for start in range(len(words)) if words[start:] != whole.split())


def _singulars(phrase: str) -> Iterator[str]:
    """Yield a phrase, then what it may be the plural of."""
    yield phrase
    *first, last = phrase.split(" ")
    if last in IRREGULAR:
        yield " ".join([*first, IRREGULAR[last]])
    for plural, singular in SINGULARS:
        if last.endswith(plural) and len(last) > len(plural) + 1:
            yield " ".join([*first, last.removesuffix(plural) + singular])


def _is_called(name: str, word: str) -> bool:
    return canonical_spelling(word) in _singulars(canonical_spelling(name))


@cache
def hierarchy() -> Hierarchy:
    """The nouns of WordNet 3.1."""
    return Hierarchy([read_synset(*part, place) for place, part in enumerate(read_sections())])


def read_sections() -> Iterator[tuple[str, str]]:
    """Yield the list and the line of each synset of WordNet: nouns and adjectives."""
    section = ""
    for line in gzip.decompress(FILE.read_bytes()).decode().splitlines():
        if line.startswith("["):
            section = line[1:-1]
        elif not line.startswith("#"):
            yield section, line


def read_synset(section: str, line: str, place: int) -> Synset:
    """One synset: `word:sense:use|...`, then how far its parents stand from it."""
    words, _, links = line.partition("\t")
    parts = [(*part.split(":"), "", "")[:3] for part in words.split("|")]
    text, numbers, uses = zip(*parts, strict=True)
    parents = links.replace("@", "").split()
    return Synset(
        kind=section.removeprefix("noun."),
        words=text,
        numbers=tuple(int(number or 1) for number in numbers),
        uses=tuple(int(use or 0) for use in uses),
        parents=tuple(place + int(parent) for parent in parents),
        is_instance="@" in links,
    )
