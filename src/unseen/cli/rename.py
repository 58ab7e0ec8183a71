"""unseen rename: a known name is called otherwise."""

from typing import Annotated

import typer

from unseen.cli import options, saved_state
from unseen.cli.edit_output import apply_and_print
from unseen.discover import rename as renamed


def rename(
    name: Annotated[str, typer.Argument(help="A known name.")],
    new: Annotated[str, typer.Argument(help="What it is called from now on.")],
    state: saved_state.State,
    space: saved_state.Space = None,
    as_json: options.AsJson = False,
) -> None:
    """Rename a known name; its vector and what was learned of it stay.

    Example: `unseen rename "sea urchin" urchin --state state.safetensors`
    """
    apply_and_print(lambda session: renamed(session, name, new), state, space, as_json=as_json)
