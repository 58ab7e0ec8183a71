"""unseen score: verdicts for features that were encoded before, of one stream or of many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, output
from unseen.errors import SettingError

BATCH = 2048  # samples between two checkpoints


def score(
    features: options.Features,
    space: options.Space,
    detector: options.Detector = None,
    state: options.State = None,
    file: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", help="Verdicts to this file: .jsonl, .csv or .txt; with --by a folder or URI of Parquet."
        ),
    ] = None,
    as_json: options.AsJson = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="Column that says which stream a sample belongs to; --state is then a folder.", metavar="COLUMN"
        ),
    ] = None,
    recall: options.Recall = None,
    threshold: options.Threshold = None,
    calibrate: options.Calibrate = None,
    only: options.Only = None,
    live: options.Live = False,
    alarm: options.Alarm = None,
    learn: options.Learn = True,
    time: Annotated[
        str | None,
        typer.Option(help="With --by and -o: column with the time of each sample; else today.", **options.MORE),
    ] = None,
    ray: options.Ray = None,
) -> None:
    """Stream features through a detector; print a verdict for each.

    Example: `unseen score features/ --space space.safetensors --detector online --state state.safetensors`

    `unseen score table.parquet --space space.safetensors --by camera --ray auto` scores each camera's samples as a
    stream of their own, many at once.
    """
    if by is not None:
        _refuse_with_by(calibrate=calibrate, alarm=alarm)
        from unseen.cli import session, streams

        given = streams.StreamOptions(features, space, by, state, file, time, ray, learn, live)
        streams.score(given, session.SessionOptions(detector, recall, threshold), as_json=as_json, only=only)
        return
    form = output.Format.of(as_json=as_json, path=Path(file) if file else None, only=only)
    output.check_folders(state)
    if ray:
        raise SettingError("expected --by COLUMN with --ray, got none: one stream is one scan; leave --ray out")

    from unseen import LabelSpace
    from unseen.alarm import StreamAlarms
    from unseen.cli import calibration, run, session
    from unseen.features import load_features
    from unseen.storage.files import content_mark

    chosen, mark = session.SessionOptions(detector, recall, threshold, calibrate), content_mark(state)
    labels = LabelSpace.load(space)
    judge = chosen.session(labels, state)
    images = (
        calibration.KnownSource.features(calibrate, calibration.CalibrationOptions(recall)).read(labels)
        if calibrate
        else None
    )
    if not learn and state is None:
        output.say("nothing learned yet: --no-learn without --state scores with the frozen text")
    samples = load_features(features)
    columns = {"key": output.longest(samples.keys), "name": output.longest(labels.names)}
    with form.lines(**columns) as lines:
        stream = run.Run(judge, lines, state, mark, learn, images, StreamAlarms.of(alarm), live=live)
        if images:
            session.calibrate(judge, images)
        stream.go(run.feature_steps(samples, size=BATCH), unit="samples", total=len(samples))
    raise stream.finish(None, title=f"unseen score: {features}", as_json=as_json)


def _refuse_with_by(**given: object) -> None:
    """Refuse options of a single stream."""
    if wrong := [f"--{name}" for name, value in given.items() if value]:
        raise SettingError(f"expected --by without {', '.join(wrong)}, which are for a single stream; leave one out")
