"""unseen score: verdicts on features; unseen calibrate: photos of the known names tell where the threshold lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import options, output
from unseen.errors import SettingError, StateError

if TYPE_CHECKING:
    from unseen import Session

BATCH = 2048  # samples between two checkpoints


def score(
    features: options.Features,
    space: options.Space,
    detector: options.Detector = None,
    state: options.State = None,
    file: options.Output = None,
    as_json: options.AsJson = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="Column that says which stream a sample belongs to; --state is then a folder.", metavar="COLUMN"
        ),
    ] = None,
    live: options.Live = False,
    learn: options.Learn = True,
    ray: options.Ray = None,
    table: Annotated[
        str | None,
        typer.Option(help="Table of PostgreSQL with pgvector; verdicts go to TABLE_verdicts.", **options.MORE),
    ] = None,
) -> None:
    """Stream features through a detector; print a verdict for each.

    Example: `unseen score features/ --space space.safetensors --detector online --state state.safetensors`

    `unseen score postgresql://localhost/shop --table photos --space space.safetensors` judges vectors of pgvector.

    `unseen score table.parquet --space space.safetensors --by camera --ray auto` scores each camera's samples as a
    stream of their own, many at once.

    Photos or features of your names then set the threshold of a state: `unseen calibrate known/ --state ...`
    """
    form = output.Format.of(as_json=as_json, path=file)
    if by is not None:
        if table:
            raise SettingError("expected --by without --table, which is for a single stream; leave one out")
        from unseen import LabelSpace, SessionSpec, keyed
        from unseen.cli import session, streams

        spec = SessionSpec(LabelSpace.load(space), session.detector_name(detector))
        job = keyed.StreamJob(spec, learn=learn, live=live, keep_state=learn and state is not None)
        form = form._replace(fields=("key", "stream", *output.FIELDS[1:]))
        streams.score(job, features, by, state=state, form=form, ray=ray, as_json=as_json)
        return
    output.check_folders(state)
    if ray:
        raise SettingError("expected --by COLUMN with --ray, got none: one stream is one scan; leave --ray out")

    from unseen import LabelSpace
    from unseen.cli import run, session
    from unseen.features import load_features
    from unseen.features.postgres import VectorTable
    from unseen.storage.files import content_mark

    mark, labels = content_mark(state), LabelSpace.load(space)
    judge = session.session_of_run(labels, state, detector)
    if not learn and state is None:
        output.say("nothing learned yet: --no-learn without --state scores with the frozen text")
    vectors, judged = VectorTable.find(features, table) if table else None, list[output.Record]()
    samples = vectors.read() if vectors else load_features(features)
    columns = {"key": output.longest(samples.keys), "name": output.longest(labels.names)}
    with form.lines(**columns) as lines:
        lines = output.both(lines, judged.append) if vectors else lines
        stream = run.Run(judge, lines, state if learn else None, mark, learn, live=live)
        stream.go(run.feature_steps(samples, size=BATCH), unit="samples", total=len(samples))
    if vectors:
        vectors.write(judged)
    raise stream.finish(None, title=f"unseen score: {features}", as_json=as_json)


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
    from unseen.cli.calibration import KnownImages
    from unseen.cli.session import calibration_lines
    from unseen.storage.files import check_unchanged, content_mark, locked

    mark, images = content_mark(state), KnownImages.find(known, recall, guarantee=guarantee, keep_odd=keep_odd)
    if not state.exists():
        raise StateError(f"expected a state to calibrate, got no file at {state}; make one with: unseen detect --state")
    session = spaces.open_session(state)
    images.read(session.detector.labels)
    before = _called_known(session)
    found = images.calibrate(session)
    now, kept = _called_known(session), len(session.reservoir.images)
    with locked(state):
        check_unchanged(state, mark)
        session.save(state)
    if as_json:
        row = {**found._asdict(), "odd": [images.keys[one] for one in found.odd], "guarantee": guarantee}
        called = {"would_call_known": now, "before": before, "of": kept}
        output.emit({"calibration": row | called, "skipped": images.skipped, "state": str(state)})
    else:
        for line in calibration_lines(session, found):
            output.say(line)
        if kept:
            in_words = f"{now:,} of {kept:,} kept images known, {before:,} before"
            output.say(f"threshold {session.threshold:z.2f} would call {in_words}")
    raise typer.Exit(output.SKIPPED if images.skipped else output.DONE)


def _called_known(session: Session) -> int:
    """How many of the kept images are not below the threshold."""
    images = session.reservoir.images
    if not len(images):
        return 0
    return int((~session.score(images.features.to(session.detector.labels.id_anchors)).unknown).sum())
