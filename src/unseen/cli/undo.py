"""unseen undo: take back the last promote, rename, retire or dismiss."""

from unseen.cli import options, saved_state
from unseen.cli.edit_output import print_record
from unseen.discover import edits


def undo(state: saved_state.State, space: saved_state.Space = None, as_json: options.AsJson = False) -> None:
    """Undo the last promote, rename, retire or dismiss of a state.

    Example: `unseen undo --state state.safetensors`

    If nothing was observed since, the state is exactly what it was; else the names go back and what was learned stays.
    """
    print_record(edits.undo(state, saved_state.load_given_space(space)).record, as_json=as_json, state=state)
