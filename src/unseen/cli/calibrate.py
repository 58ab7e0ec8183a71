"""unseen calibrate: a threshold with a guarantee, from photos that are known to show the known names."""

from typing import Annotated

import typer

from unseen.cli import options, output
from unseen.errors import StateError


def calibrate(
    known: Annotated[str, typer.Argument(help="Photos of your names: folder, folder per class, or features of them.")],
    state: options.SavedState,
    recall: Annotated[
        float | None, typer.Option(help="Share of known images that the threshold should accept (default: 0.95).")
    ] = None,
    encoder: options.OwnEncoder = None,
    as_json: options.AsJson = False,
) -> None:
    """Set the threshold of a state by photos that show your names for certain. Nothing is learned.

    Example: `unseen calibrate known/ --state state.safetensors --recall 0.95`

    20 photos are enough to start. Calibrate again after the state has learned from many new images.
    """
    from unseen.cli import spaces
    from unseen.cli.known import KnownSource
    from unseen.storage.locks import check_unchanged, content_mark, locked

    mark, source = content_mark(state), KnownSource.find(known, recall)
    if not state.exists():
        raise StateError(f"expected a state to calibrate, got no file at {state}; make one with: unseen detect --state")
    session = spaces.open_session(state)
    space = session.detector.labels
    model = spaces.encoder_of(space, encoder) if source.entries is not None else None
    images = source.read(space, model)
    found = images.calibrate(session)
    with locked(state):
        check_unchanged(state, mark)
        session.save(state)
    images.print_result(session, found, as_json=as_json, state=state)
    raise typer.Exit(output.SKIPPED if images.skipped else output.DONE)
