"""Names from a file, and the checks that every list of names passes."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from numbers import Number
from pathlib import Path

from unseen.errors import LabelError
from unseen.labels.name_files import numbered_names

UNWRITABLE = ("Cc", "Cs")  # Unicode's control characters and lone halves of characters


def check_names(which: str, names: Sequence[str], *, at_least_one: bool = False) -> tuple[str, ...]:
    """The names as they are, or say what is wrong with them."""
    if isinstance(names, str):
        raise LabelError(f"expected {which} as a list of strings, got one string; pass [{names!r}]")
    if at_least_one and not names:
        raise LabelError("expected at least one known name, got none; pass the classes you want to recognise")
    if others := [name for name in names if not isinstance(name, str)]:
        if isinstance(others[0], Number):
            raise LabelError(f"expected {which} as strings, got {others[0]!r}; write {str(others[0])!r}")
        raise LabelError(f"expected {which} as strings, got {type(others[0]).__name__}; pass the words themselves")
    if blank := [name for name in names if not name.strip()]:
        raise LabelError(f"expected {which} without blanks, got {len(blank)} empty; remove them")
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise LabelError(f"expected distinct {which}, got {doubled[:3]} more than once; remove the duplicates")
    return tuple(names)


def check_new_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of a new label space as they are; refuse none, and those that cannot be written on one line."""
    for name in check_names("names", names, at_least_one=True):
        if not is_writable(name):
            raise LabelError(
                f"expected names on one line, got {name[:60]!r}; give each by itself, or a file of them, one a line"
            )
    return tuple(names)


def is_writable(name: str) -> bool:
    """Whether a name has no line breaks and no other control characters."""
    return not any(unicodedata.category(letter) in UNWRITABLE for letter in name)


def read_names(path: str | Path) -> tuple[str, ...]:
    """The distinct names in a file, in its order; a name given twice is an error that says where."""
    places = defaultdict(list)
    for number, name in numbered_names(Path(path)):
        places[name].append(number)
    if doubled := {name: lines for name, lines in places.items() if len(lines) > 1}:
        name, lines = next(iter(doubled.items()))
        others = f", and {len(doubled) - 1} more such names" if len(doubled) > 1 else ""
        where = " and ".join(map(str, lines))
        raise LabelError(
            f"expected distinct names in {path}, got {name!r} on lines {where}{others}; remove the duplicates"
        )
    if not places:
        raise LabelError(f"expected names in {path}, got none; write the classes you want to recognise")
    return tuple(places)


def read_words(path: str | Path) -> tuple[str, ...]:
    """The words of a user's list in its order, each once: long lists repeat themselves."""
    return tuple(dict.fromkeys(word for _, word in numbered_names(Path(path))))
