"""unseen calibrate: photos that are known to show the known names tell where the threshold lies."""

from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import options, output
from unseen.errors import StateError

if TYPE_CHECKING:
    from unseen import Session


def calibrate(
    known: Annotated[str, typer.Argument(help="Photos of your names: folder, folder per class, or features of them.")],
    state: options.SavedState,
    recall: Annotated[
        float | None, typer.Option(help="Share of known images that the threshold should accept (default: 0.95).")
    ] = None,
    guarantee: Annotated[
        bool, typer.Option("--guarantee", help="Keep a new known image with this probability, whatever it costs.")
    ] = False,
    keep_odd: Annotated[bool, typer.Option("--keep-odd", help="Keep photos that look unlike their class.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Set the threshold of a state by photos that show your names for certain. Nothing is learned.

    Example: `unseen calibrate known/ --state state.safetensors --recall 0.95`

    Any number of photos helps, and the threshold follows the stream as before. With `--guarantee` (19 photos for 0.95)
    they alone set it: calibrate again after the state has learned from many new images.
    """
    from unseen.cli import spaces
    from unseen.cli.calibration import CalibrationOptions, KnownSource, calibration_lines
    from unseen.storage.files import check_unchanged, content_mark, locked

    mark, source = content_mark(state), KnownSource.find(known, CalibrationOptions(recall, guarantee, keep_odd))
    if not state.exists():
        raise StateError(f"expected a state to calibrate, got no file at {state}; make one with: unseen detect --state")
    session = spaces.open_session(state)
    space = session.detector.labels
    model = spaces.encoder_of(space) if source.entries is not None else None
    images = source.read(space, model)
    before = _called_known(session)
    found = images.calibrate(session)
    now, kept = _called_known(session), len(session.reservoir.images)
    with locked(state):
        check_unchanged(state, mark)
        session.save(state)
    if as_json:
        row = {**found._asdict(), "odd": [images.keys[one] for one in found.odd], "guarantee": guarantee}
        called = {"would_call_known": now, "before": before, "of": kept}
        output.emit({"calibration": row | called, "skipped": len(images.skipped), "state": str(state)})
    else:
        for line in calibration_lines(session, found):
            output.say(line)
        if kept:
            in_words = f"{now:,} of {kept:,} kept images known, {before:,} before"
            output.say(f"threshold {session.threshold:z.2f} would call {in_words}")
    raise typer.Exit(output.SKIPPED if images.skipped else output.DONE)


def _called_known(session: "Session") -> int:
    """How many of the kept images are not below the threshold."""
    images = session.reservoir.images
    if not len(images):
        return 0
    return int((~session.score(images.features.to(session.detector.labels.id_anchors)).unknown).sum())
