"""unseen promote, rename, retire, dismiss and undo: the edits of a state are one command with five words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli import options, output, sort
from unseen.errors import SettingError, check_choice

if TYPE_CHECKING:
    from unseen import Session
    from unseen.discover import Edited

VERBS: Mapping[str, tuple[str, ...]] = {
    "promote": ("the number of a group or the key of an image", "its name"),
    "rename": ("a known name", "the new one"),
    "retire": ("a known name",),
    "dismiss": ("the number of a group",),
    "undo": (),
}  # and the words that follow
SENTENCES = {
    "promote": "{name} is a known name now",
    "rename": "{name} is called {new} now",
    "retire": "{name} is a negative now: images of it are unknown from here on",
    "dismiss": "group {group} ({images} images) is not shown again",
    "undo": "edit {undone} ({of}) is undone",
}


def edit(
    verb: Annotated[str, typer.Argument(help="promote, rename, retire, dismiss or undo; `edit` may be left out.")],
    state: options.SavedState,
    words: Annotated[list[str] | None, typer.Argument(help="A group or a name, and the new name.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Change what is known: promote, rename, retire, dismiss, undo.

    Example: `unseen promote 3 "sea urchin" --state state.safetensors`

    - `promote GROUP NAME` makes a group of unknown images (`unseen group`), or a kept image, a known name. They are
      judged again; what was learned stays; negatives that mean the same are removed.
    - `rename NAME NEW` keeps the vector of a name and what was learned of it.
    - `retire NAME` makes a known name a negative: its images are unknown from now on.
    - `dismiss GROUP` hides a group; its images stay unknown.
    - `undo` takes the last edit back. If nothing was observed since, the state is exactly what it was; else the names
      go back and what was learned stays. Of a `sorted.jsonl` it removes what `detect --sort-into` made.
    """
    given = words or []
    check_choice("an edit", verb, VERBS)
    if len(given) != len(VERBS[verb]):
        wanted = " and ".join(VERBS[verb]) or "no word"
        remedy = _proposed(given[0], state) if verb == "promote" and len(given) == 1 else "quote names of words"
        raise SettingError(f"expected {wanted} after {verb}, got {' '.join(given) or 'nothing'}; {remedy}")
    if verb == "undo" and state.name == sort.UNDO:
        removed, left = sort.take_back(state)
        found = {"removed": removed, "left": left}
        output.emit(found) if as_json else print(f"removed {removed:,} · left {left:,} that were changed")
        return
    from unseen.discover import edits

    done = edits.undo(state) if verb == "undo" else edits.apply(state, _change(verb, given, state))
    print_edit(done.record, as_json=as_json, state=state)


def _proposed(group: str, state: Path) -> str:
    """In words what a group may be called: the negatives that its images are most like."""
    from unseen.cli import spaces
    from unseen.discover import group as grouped

    groups = {str(one.number): one for one in grouped(spaces.open_session(state)).groups}
    if group not in groups:
        return f"see: unseen group --state {state}"
    words = ", ".join(f"{word.word!r} ({100 * word.share:.0f} %)" for word in groups[group].suggestions[:3])
    return f"the images look like {words}"


def _change(verb: str, words: Sequence[str], state: Path) -> Callable[[Session], Edited]:
    """The edit that the words ask for; what needs an encoder is ready when the state is locked."""
    from unseen.discover import edit

    if verb == "dismiss":
        if not words[0].isdecimal():
            raise SettingError(f"expected the number of a group, got {words[0]!r}; see: unseen group --state {state}")
        return lambda session: edit.dismiss(session, int(words[0]))
    if verb == "rename":
        return lambda session: edit.rename(session, words[0], words[1])
    if verb == "retire":
        return lambda session: edit.retire(session, words[0])
    return _promotion(words[0], words[1], state)


def _promotion(group: str, name: str, state: Path) -> Callable[[Session], Edited]:
    from unseen.cli import spaces
    from unseen.discover import edit
    from unseen.labels.edits import check_new_name, negative_vector
    from unseen.labels.prompts import described_templates

    session = spaces.open_session(state)
    labels, keys = session.detector.labels, session.reservoir.images.keys
    which = int(group) if group.isdecimal() and group not in keys else group
    edit.members(session, which)  # refused before an encoder is loaded
    check_new_name(labels.names, name)
    text = None if spaces.encoder_name(labels) else negative_vector(labels, name)
    if text is None:
        model = spaces.encoder_of(labels)
        text = described_templates(labels.prompt).encode([name], model)[0]
    return lambda session: edit.promote(session, which, name, text)


def print_edit(record: Mapping[str, Any], *, as_json: bool, state: Path | None = None) -> None:
    """Print the record of an edit."""
    if as_json:
        output.emit({**record, "state": str(state)})
        return
    parts = [SENTENCES[record["verb"]].format_map(record)]
    if record["verb"] == "promote":
        images, named = record["images"], record["now_named"]
        parts.append(f"images that are known by it: {named:,} of {images:,}")
        if 2 * named < images:
            parts.append("the text is far from most of them: undo, and try another word")
    if words := record.get("negatives_removed"):
        more = f" and {len(words) - 5} more" if len(words) > 5 else ""
        parts.append(f"negatives removed: {', '.join(words[:5])}{more}")
    if names := record.get("similar_names"):
        parts.append(f"says nearly the same as {', '.join(names)}: images of one may get the name of the other")
    if not record.get("carried", True):
        parts.append("the detector cannot carry its state: it learned anew from the kept images")
    if state and record["verb"] != "undo":
        parts.append(f"take it back: unseen undo --state {state}")
    print(" · ".join(parts))
