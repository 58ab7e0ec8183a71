"""Words that negatives are mined from: WordNet by lexicographer list, or a list of one's own."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from unseen.errors import LabelError
from unseen.labels.names import read_words
from unseen.labels.relatives import every_negative
from unseen.vocabulary import canonical_spelling, read_sections


@dataclass(frozen=True)
class Corpus:
    """Named lists of words; lists called adj.* hold adjectives, all others nouns."""

    name: str
    lists: dict[str, tuple[str, ...]]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every list and word."""
        digest = hashlib.sha256()
        for name, words in self.lists.items():
            digest.update("\n".join([f"[{name}]", *words, ""]).encode())
        return digest.hexdigest()

    def without(self, excluded: Iterable[str]) -> Corpus:
        """The corpus less some lists."""
        gone = set(excluded)
        if unknown := gone - set(self.lists):
            raise LabelError(f"expected lists of {self.name}, got {sorted(unknown)}; there are {', '.join(self.lists)}")
        return Corpus(self.name, {name: words for name, words in self.lists.items() if name not in gone})


def distinct_words(words: Iterable[str], taken: set[str]) -> list[int]:
    """The positions of words whose spelling is not taken yet, and mark them taken."""
    kept = []
    for position, word in enumerate(words):
        if (spelling := canonical_spelling(word)) not in taken:
            taken.add(spelling)
            kept.append(position)
    return kept


@cache
def synset_names() -> Corpus:
    """The words that open a synset of their list: the rule of NegLabel's corpus of 70,000 words."""
    lists: dict[str, set[str]] = defaultdict(set)
    for section, line in read_sections():
        first = line.partition("\t")[0].partition("|")[0]
        lists[section].add(first.partition(":")[0])
    return Corpus(
        "WordNet 3.1, first word of each synset", {section: tuple(sorted(words)) for section, words in lists.items()}
    )


@cache
def vocabulary() -> Corpus:
    """The words that `LabelSpace.build` chooses from; the offline encoder has their vectors, and encodes none."""
    return Corpus("WordNet 3.1, what has a name of its own", {"noun.own": every_negative()})


def word_list(path: str | Path) -> Corpus:
    """A user's own words, all taken as nouns.

    >>> import tempfile
    >>> (file := Path(tempfile.mkdtemp()) / "words.txt").write_text("piano")
    5
    >>> word_list(file).lists
    {'noun.own': ('piano',)}
    """
    words = read_words(path)
    if not words:
        raise LabelError(f"expected one word per line in {path}, got none; pass a list with words")
    return Corpus(Path(path).name, {"noun.own": words})
