"""Words that negatives are mined from: WordNet by lexicographer list, or a list of one's own."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from unseen.errors import LabelError
from unseen.labels.names import read_words

WORDNET = Path(__file__).with_name("wordnet.txt.gz")


@dataclass(frozen=True)
class Corpus:
    """Named lists of words; lists called adj.* hold adjectives, all others nouns."""

    name: str
    lists: dict[str, tuple[str, ...]]

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of every list and word."""
        digest = hashlib.sha256()
        for name, words in self.lists.items():
            digest.update("\n".join([f"[{name}]", *words, ""]).encode())
        return digest.hexdigest()

    def without(self, excluded: Iterable[str]) -> Corpus:
        """Return the corpus less some lists."""
        gone = set(excluded)
        if unknown := gone - set(self.lists):
            raise LabelError(f"expected lists of {self.name}, got {sorted(unknown)}; there are {', '.join(self.lists)}")
        return Corpus(self.name, {name: words for name, words in self.lists.items() if name not in gone})

    def thinned(self, count: int) -> Corpus:
        """Return about `count` words, the same ones every time: evenly spaced places of each sorted list."""
        total = sum(map(len, self.lists.values()))
        if count <= 0 or count >= total:
            return self
        lists = {name: _spaced(words, max(1, round(len(words) * count / total))) for name, words in self.lists.items()}
        return Corpus(f"{sum(map(len, lists.values())):,} words of {self.name}", lists)

    def __len__(self) -> int:
        return len({canonical_spelling(word) for words in self.lists.values() for word in words})


def _spaced(words: tuple[str, ...], count: int) -> tuple[str, ...]:
    return tuple(words[i * len(words) // count] for i in range(count))


def canonical_spelling(word: str) -> str:
    """Return one form for all spellings of a word that a text encoder reads alike: case, hyphens, underscores.

    >>> canonical_spelling("Ice-Cream") == canonical_spelling("ice_cream") == "ice cream"
    True
    """
    return word.casefold().replace("_", " ").replace("-", " ").strip()


def distinct_words(words: Iterable[str], taken: set[str]) -> list[int]:
    """Return the positions of words whose spelling is not taken yet, and mark them taken."""
    kept = []
    for position, word in enumerate(words):
        if (spelling := canonical_spelling(word)) not in taken:
            taken.add(spelling)
            kept.append(position)
    return kept


@cache
def wordnet() -> Corpus:
    """Return the nouns and adjectives of WordNet 3.1 by lexicographer list, lists and words in a fixed order."""
    lists: dict[str, list[str]] = {}
    section: list[str] = []
    for line in gzip.decompress(WORDNET.read_bytes()).decode().splitlines():
        if line.startswith("["):
            section = lists.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            section.append(line)
    return Corpus("WordNet 3.1", {name: tuple(words) for name, words in lists.items()})


def word_list(path: str | Path) -> Corpus:
    """Return a user's own words, all taken as nouns."""
    words = read_words(path)
    if not words:
        raise LabelError(f"expected one word per line in {path}, got none; pass a list with words")
    return Corpus(Path(path).name, {"noun.own": words})
