"""The session of a state file, for the commands that look into one or change it."""

from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace, Session
from unseen.cli import label_space
from unseen.discover.edits import check_state

State = Annotated[Path, typer.Option(help="State file of `unseen detect` or `score`.")]
Space = Annotated[Path | None, typer.Option(help="Label space of the state, if it is not beside it.")]


def open_session(state: Path, space: Path | None) -> Session:
    """The session that a state was saved by."""
    check_state(state)
    labels = label_space.saved_space(space, state, has_names=True)
    assert labels is not None  # the state exists
    return Session.load(state, labels)


def load_given_space(space: Path | None) -> LabelSpace | None:
    """The label space of `--space`, None where the one beside the state is meant."""
    return LabelSpace.load(space) if space else None
