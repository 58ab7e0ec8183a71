"""unseen dismiss: a group is not shown again."""

from typing import Annotated

import typer

from unseen.cli import options, saved_state
from unseen.cli.edit_output import print_record
from unseen.discover import dismiss as dismissed
from unseen.discover import edits


def dismiss(
    group: Annotated[int, typer.Argument(help="Number of a group (`unseen group`).")],
    state: saved_state.State,
    space: saved_state.Space = None,
    as_json: options.AsJson = False,
) -> None:
    """Hide a group from now on; its images stay unknown.

    Example: `unseen dismiss 3 --state state.safetensors`
    """
    done = edits.apply(state, saved_state.load_given_space(space), lambda session: dismissed(session, group))
    print_record(done.record, as_json=as_json, state=state)
