"""Photos into a folder for each name, `doubtful` and `unknown`: a plan first, then links or copies, and a way back."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from unseen.cli import output
from unseen.errors import DataError, SettingError, check_choice

WAYS = ("plan", "link", "copy")
UNDO = "sorted.jsonl"  # what was made, a line each, written before it is


def check(folder: Path, way: str) -> None:
    """Refuse a way that is none, and a folder that was sorted into before, before any work is done."""
    check_choice("a way to sort", way, WAYS)
    if (folder / UNDO).exists():
        raise SettingError(f"expected a folder without {UNDO}, got {folder}; `unseen undo --state {folder / UNDO}`")
    if way != "plan":
        output.check_writable(folder)


def folder_name(label: str) -> str:
    """A label as the name of one folder inside another, whatever a person wrote.

    >>> folder_name("cat"), folder_name("24/7 shop"), folder_name("..")
    ('cat', '24_7 shop', '__')
    """
    written = "".join("_" if letter in "/\\\0" else letter for letter in label)
    return written.replace(".", "_") if set(written) == {"."} else written


def places(labelled: Iterable[tuple[str, str]], folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each key that is a file and where it goes, by its label; of two with one name the second gets a number."""
    taken: Counter[Path] = Counter()
    for key, label in labelled:
        if (source := Path(key)).is_file():
            target = folder / folder_name(label) / source.name
            taken[target] += 1
            while taken[target] > 1 or target.exists():
                target = target.with_name(f"{source.stem}-{taken[target]}{source.suffix}")
                taken[target] += 1
            yield source.absolute(), target.absolute()


def put(labelled: Iterable[tuple[str, str]], folder: Path, way: str) -> Counter[str]:
    """How many photos went, or would go, into each folder below one."""
    found = list(places(labelled, folder))
    if not found:
        raise DataError("expected keys that are files, got none; run it in the folder from which the photos were read")
    if way != "plan":
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / UNDO).open("w", encoding="utf-8") as undo:
            for source, target in found:
                undo.write(json.dumps({"from": str(source), "to": str(target), "way": way}) + "\n")
                undo.flush()
                target.parent.mkdir(exist_ok=True)
                os.symlink(source, target) if way == "link" else shutil.copy2(source, target)
    return Counter(target.parent.name for _, target in found)


def take_back(file: Path) -> tuple[int, int]:
    """How many links and copies were removed, and how many were left because they are no longer what was made."""
    made, left = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], 0
    for one in made:
        source, target = Path(one["from"]), Path(one["to"])
        is_link = target.is_symlink() and Path(os.readlink(target)) == source
        if is_link if one["way"] == "link" else _is_copy(target, source):
            target.unlink()
        else:
            left += os.path.lexists(target)
    for folder in {Path(one["to"]).parent for one in made}:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    file.unlink()
    return len(made) - left, left


def _is_copy(target: Path, source: Path) -> bool:
    """Whether nobody has changed a copy; one whose photo is gone is the only one."""
    if target.is_symlink() or not (target.is_file() and source.is_file()):
        return False
    mine, theirs = target.stat(), source.stat()
    return (mine.st_size, int(mine.st_mtime)) == (theirs.st_size, int(theirs.st_mtime))


def sort(records: Iterable[output.Record], folder: Path, way: str, only: Sequence[str]) -> None:
    """Put the photos of verdicts where they go, and say what was made, and how to go on or back."""
    words = (
        (one["key"], one["name"], one["verdict"]) for one in records if one["verdict"] in (only or output.VERDICTS)
    )
    counts = put(((key, name if word == "known" else word) for key, name, word in words), folder, way)
    parts = [f"{name} {count:,}" for name, count in sorted(counts.items())]
    last = "do it: --sort-as link, or copy" if way == "plan" else f"undo: unseen undo --state {folder / UNDO}"
    said = "would sort" if way == "plan" else "sorted"
    output.say(" · ".join([f"{said} {counts.total():,} photos into {folder}: {', '.join(parts)}", last]))
