"""unseen retire: a known name is known no more."""

from typing import Annotated

import typer

from unseen.cli import options, saved_state
from unseen.cli.edit_output import apply_and_print
from unseen.discover import retire as retired


def retire(
    name: Annotated[str, typer.Argument(help="A known name.")],
    state: saved_state.State,
    space: saved_state.Space = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a known name a negative: its images are unknown from now on; what was learned of it stays.

    Example: `unseen retire "sea urchin" --state state.safetensors`
    """
    apply_and_print(lambda session: retired(session, name), state, space, as_json=as_json)
