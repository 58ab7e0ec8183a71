"""Names from a text file, one per line, and the checks that every list of names passes."""

import codecs
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from unseen.errors import LabelError

BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def check_names(which: str, names: Sequence[str], *, at_least_one: bool = False) -> tuple[str, ...]:
    """Return the names as they are, or say what is wrong with them."""
    if isinstance(names, str):
        raise LabelError(f"expected {which} as a list of strings, got one string; pass [{names!r}]")
    if at_least_one and not names:
        raise LabelError("expected at least one known name, got none; pass the classes you want to recognise")
    if blank := [name for name in names if not name.strip()]:
        raise LabelError(f"expected {which} without blanks, got {len(blank)} empty; remove them")
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise LabelError(f"expected distinct {which}, got {doubled[:3]} more than once; remove the duplicates")
    return tuple(names)


def read_names(path: str | Path) -> tuple[str, ...]:
    """Return the distinct names in a file, in its order; a name given twice is an error that says where."""
    places = defaultdict(list)
    for number, name in _numbered(path):
        places[name].append(number)
    if doubled := {name: lines for name, lines in places.items() if len(lines) > 1}:
        name, lines = next(iter(doubled.items()))
        raise LabelError(
            f"expected distinct names in {path}, got {name!r} on lines {lines} and {len(doubled) - 1} more such; "
            "remove the duplicates"
        )
    if not places:
        raise LabelError(f"expected one name per line in {path}, got none; write the classes you want to recognise")
    return tuple(places)


def read_words(path: str | Path) -> tuple[str, ...]:
    """Return the words of a user's list in its order, each once: long lists repeat themselves."""
    return tuple(dict.fromkeys(word for _, word in _numbered(path)))


def _numbered(path: str | Path) -> list[tuple[int, str]]:
    lines = [line.strip() for line in _text(Path(path)).splitlines()]
    return [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LabelError(f"expected a text file at {path}, got {error.strerror}; check the path") from error
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise LabelError(
            f"expected UTF-8 text in {path}, got byte {data[error.start]:#04x} at position {error.start}; "
            f"convert it, for example: iconv -f latin1 -t utf-8 {path.name}"
        ) from error
    if "\0" in text:  # UTF-16 without a byte order mark decodes as UTF-8 with NULs
        raise LabelError(f"expected UTF-8 text in {path}, got NUL characters; save it as UTF-8 (it looks like UTF-16)")
    return text
