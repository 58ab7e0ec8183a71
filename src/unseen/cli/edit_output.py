"""What the commands that change the names of a state share: the edit of the state, and what is printed of it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unseen import Session
from unseen.cli import saved_state, terminal
from unseen.discover import Edited, edits


def apply_and_print(edit: Callable[[Session], Edited], state: Path, space: Path | None, *, as_json: bool) -> None:
    """Change a state by `edit` and print the record of it."""
    done = edits.apply(state, saved_state.load_given_space(space), edit)
    print_record(done.record, as_json=as_json, state=state)


def print_record(record: Mapping[str, Any], *, as_json: bool, state: Path | None = None) -> None:
    """Print the record of an edit."""
    if as_json:
        terminal.emit({**record, "state": str(state)})
        return
    parts = [
        SENTENCES[record["verb"]].format_map(record),
        _named(record),
        _far(record),
        _negatives(record.get("negatives_removed", ())),
        _similar(record.get("similar_names", ())),
        ""
        if record.get("carried", True)
        else "the detector cannot carry its state: it learned anew from the kept images",
        f"take it back: unseen undo --state {state}" if state and record["verb"] != "undo" else "",
    ]
    print(" · ".join(filter(None, parts)))


SENTENCES = {
    "promote": "{name} is a known name now",
    "rename": "{name} is called {new} now",
    "retire": "{name} is a negative now: images of it are unknown from here on",
    "dismiss": "group {group} ({images} images) is not shown again",
    "correct": "your word on {images} images is kept",
    "undo": "edit {undone} ({of}) is undone",
}


def _named(record: Mapping[str, Any]) -> str:
    """How many images of a promoted group have its name now."""
    if record["verb"] != "promote":
        return ""
    if record["images"] == 1:
        return "its image is known by it" if record["now_named"] else "its image is still unknown"
    return f"{record['now_named']} of its {record['images']} images are known by it"


def _far(record: Mapping[str, Any]) -> str:
    if record["verb"] != "promote" or 2 * record["now_named"] >= record["images"]:
        return ""
    what = "it" if record["images"] == 1 else "most of them"
    return f"the text is far from {what}: undo, and try another word"


def _similar(names: Sequence[str]) -> str:
    return f"says nearly the same as {', '.join(names)}: images of one may get the name of the other" if names else ""


def _negatives(words: Sequence[str]) -> str:
    if not words:
        return ""
    more = f" and {len(words) - 5} more" if len(words) > 5 else ""
    return f"negatives removed: {', '.join(words[:5])}{more}"
