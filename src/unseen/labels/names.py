"""Names from a file, and the checks that every list of names passes."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from unseen.errors import LabelError
from unseen.labels.name_files import numbered_names


def check_names(which: str, names: Sequence[str], *, at_least_one: bool = False) -> tuple[str, ...]:
    """Return the names as they are, or say what is wrong with them."""
    if isinstance(names, str):
        raise LabelError(f"expected {which} as a list of strings, got one string; pass [{names!r}]")
    if at_least_one and not names:
        raise LabelError("expected at least one known name, got none; pass the classes you want to recognise")
    if others := [name for name in names if not isinstance(name, str)]:
        raise LabelError(f"expected {which} as strings, got {others[0]!r}; write {str(others[0])!r}")
    if blank := [name for name in names if not name.strip()]:
        raise LabelError(f"expected {which} without blanks, got {len(blank)} empty; remove them")
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise LabelError(f"expected distinct {which}, got {doubled[:3]} more than once; remove the duplicates")
    return tuple(names)


def read_names(path: str | Path) -> tuple[str, ...]:
    """Return the distinct names in a file, in its order; a name given twice is an error that says where."""
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
    """Return the words of a user's list in its order, each once: long lists repeat themselves."""
    return tuple(dict.fromkeys(word for _, word in numbered_names(Path(path))))
