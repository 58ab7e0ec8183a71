"""unseen dismiss: a group is not shown again."""

from typing import Annotated

import typer

from unseen.cli import options, saved_state
from unseen.cli.edit_output import apply_and_print
from unseen.discover import dismiss as dismissed


def dismiss(
    group: Annotated[int, typer.Argument(help="Number of a group (`unseen group`).")],
    state: saved_state.State,
    space: saved_state.Space = None,
    as_json: options.AsJson = False,
) -> None:
    """Hide a group from now on; its images stay unknown.

    Example: `unseen dismiss 3 --state state.safetensors`
    """
    apply_and_print(lambda session: dismissed(session, group), state, space, as_json=as_json)
