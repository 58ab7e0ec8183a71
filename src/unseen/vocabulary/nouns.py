"""WordNet's nouns, what is a kind of what, and how much each word is used: where names stand beside their relatives.

A synset is a set of words that mean the same; its place is its number in the file of `tools/build_vocabulary.py`.
"""

from __future__ import annotations

import difflib
import gzip
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("vocabulary.txt.gz")

# lists of what a photo can show: senses of a name are looked for in the first, then in those people seldom mean, ...
SHOWN = (
    ("animal", "artifact", "food", "object", "phenomenon", "plant", "substance"),
    ("body", "person"),
    ("Tops", "act", "communication", "event", "group", "location", "possession", "shape", "time"),
)
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
UNHEARD = 43  # of use: a dog may be a sausage too, and a cat a drug, but hardly ever is; a mouse may be of a computer
RARER = 10  # of use: WordNet's first word is the plain one, but it says cellular telephone
ALIKE = 0.85  # share of letters in common from which a word may be a slip of the pen for another
WIDEST = 3000  # kinds that an ancestor may have: an instrument has relatives, an artefact is just a thing


def canonical_spelling(word: str) -> str:
    """One form for all spellings of a word that a text encoder reads alike: case, hyphens, underscores.

    >>> canonical_spelling("Ice-Cream") == canonical_spelling("ice_cream") == "ice cream"
    True
    """
    return word.casefold().replace("_", " ").replace("-", " ").strip()


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

    def use_of(self, word: str) -> int:
        """How much a word is used for it; 0 where it is none of its words."""
        return next((use for one, use in zip(self.words, self.uses, strict=True) if canonical_spelling(one) == word), 0)

    @property
    def word(self) -> str:
        """Its first word that is not ten times less used than another."""
        return next(word for word, use in zip(self.words, self.uses, strict=True) if use >= self.use - RARER)


class Found(NamedTuple):
    """Where a name stands among the nouns."""

    senses: tuple[int, ...]  # places of all senses that a photo can show, likeliest first
    is_exact: bool  # a billy shelf is none of the nouns, but a kind of shelf

    @property
    def place(self) -> int:
        """The place of the sense that is likeliest meant."""
        return self.senses[0]


class Synsets(Sequence[Synset]):
    """The synsets of a file by place, each read when it is asked for: a run needs few of them."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self.lines = list(lines)
        self._read: dict[int, Synset] = {}

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, place: int) -> Synset:  # type: ignore[override]  # no slices
        if place not in self._read:
            self._read[place] = read_synset(*self.lines[place], place)
        return self._read[place]


@dataclass(frozen=True)
class Hierarchy:
    """Synsets, each with the places of what it is a kind of."""

    synsets: Synsets

    @cached_property
    def senses(self) -> Mapping[str, Sequence[int]]:
        """The places of each spelling, in the order of WordNet's senses."""
        found = defaultdict(list)
        for place, (_, line) in enumerate(self.synsets.lines):
            for part in canonical_spelling(line.partition("\t")[0]).split("|"):
                word, _, rest = part.partition(":")
                found[word].append((int(rest.partition(":")[0] or 1), place))
        return {word: [place for _, place in sorted(places)] for word, places in found.items()}

    @cached_property
    def children(self) -> Mapping[int, Sequence[int]]:
        """The places of what is a kind of each place."""
        found = defaultdict(list)
        for place, (_, line) in enumerate(self.synsets.lines):
            for link in line.partition("\t")[2].replace("@", "").split():
                found[place + int(link)].append(place)
        return dict(found)

    def of_kinds(self, kinds: Collection[str]) -> Iterator[tuple[int, Synset]]:
        """Yield the places of some lists, with their synsets."""
        for place, (section, _) in enumerate(self.synsets.lines):
            if section.removeprefix("noun.") in kinds:
                yield place, self.synsets[place]

    def find(self, name: str) -> Found | None:
        """Where a name stands: the first sense that a photo can show."""
        return self.find_all([name]).get(name)

    def find_all(self, names: Iterable[str]) -> dict[str, Found]:
        """Where each name stands that is found: of several senses first what has most to do with the other names."""
        found = {name: one for name in names if (one := self._found(name))}
        families = {place: self._families(place) for one in found.values() for place in one.senses}
        company = Counter(
            family for one in found.values() for family in set().union(*(families[place] for place in one.senses))
        )

        def weight(sense: tuple[int, int]) -> tuple[int, float]:
            rank, place = sense
            return sum(company[one] - 1 for one in families[place]), math.log(1 + self.size(place)) / rank

        def ranked(senses: Sequence[int]) -> tuple[int, ...]:
            return tuple(place for _, place in sorted(enumerate(senses, 1), key=weight, reverse=True))

        return {name: one._replace(senses=ranked(one.senses)) for name, one in found.items()}

    def _families(self, place: int) -> frozenset[int]:
        """What a place is a kind of, as far as its kinds are a family."""
        return frozenset(above for above in self.above([place]) if self.size(above) <= WIDEST)

    @cached_property
    def _sizes(self) -> dict[int, int]:
        return {}

    def size(self, place: int) -> int:
        """How many kinds a place has, itself among them."""
        if place not in self._sizes:
            self._sizes[place] = len(self.below([place]))
        return self._sizes[place]

    def _found(self, name: str) -> Found | None:
        for phrase, is_exact in _phrases(name):
            word = next((one for one in _singulars(phrase) if one in self.senses), None)
            if word and (shown := self._shown(word)):
                return Found(tuple(shown), is_exact)
        return None

    def _shown(self, word: str) -> list[int]:
        """The senses of a word that a photo can show, of the first lists that have any, but for those unheard of."""
        for kinds in SHOWN:
            senses = ((place, self.synsets[place]) for place in self.senses[word])
            uses = {p: one.use_of(word) for p, one in senses if one.kind in kinds and not one.is_instance}
            if uses:
                least = max(uses.values()) - UNHEARD
                return [place for place, use in uses.items() if not use or use >= least]  # 0: nobody counted
        return []

    def is_meant(self, place: int) -> bool:
        """Whether people who say the word of a place mean it: not if ten times as many mean another of its senses."""
        word = canonical_spelling(self.synsets[place].word)
        others = (self.synsets[one].use_of(word) for one in self.senses[word] if one != place)
        return max(others, default=0) < self.synsets[place].use_of(word) + RARER

    def has(self, name: str) -> bool:
        """Whether a name is found, be it as a kind of something."""
        return self._found(name) is not None

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

    def path(self, name: str, found: Found | None = None) -> tuple[str, ...]:
        """A name, and what it is a kind of, up to the most general word; `found` is where it stands among others."""
        if (found := found or self.find(name)) is None:
            return (name,)
        path = [found.place]
        while parents := self.synsets[path[-1]].parents:
            path.append(parents[0])
        words = [self.synsets[place].word for place in path]
        return tuple(words if found.is_exact else (name, *words))


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


def is_called(name: str, word: str) -> bool:
    """Whether a name is a word, or its plural."""
    return canonical_spelling(word) in _singulars(canonical_spelling(name))


def is_part(name: str, word: str) -> bool:
    """Whether a name, or what it is the plural of, is among the words of a longer one.

    >>> is_part("mice", "computer mouse"), is_part("dog", "hotdog")
    (True, False)
    """
    return any(f" {one} " in f" {canonical_spelling(word)} " for one in _singulars(canonical_spelling(name)))


@cache
def hierarchy() -> Hierarchy:
    """The nouns of WordNet 3.1."""
    return Hierarchy(Synsets(part for part in read_sections() if part[0].startswith("noun.")))


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
