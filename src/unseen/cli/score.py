"""unseen score: verdicts for features that were encoded before."""

from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace
from unseen.alarm import UnknownRateAlarm
from unseen.cli import options, output, terminal
from unseen.cli.alarms import Alarms
from unseen.cli.calibrate import RECALL, KnownImages, is_features, read_known
from unseen.cli.session import SessionOptions
from unseen.cli.stream_run import JudgedBatch, StreamRun
from unseen.errors import SettingError
from unseen.features import load_features
from unseen.report import stream_page
from unseen.storage.locks import content_mark

BATCH = 2048  # samples between two checkpoints


def score(
    features: options.Features,
    space: options.Space,
    detector: options.Detector = None,
    state: options.State = None,
    recall: options.Recall = None,
    threshold: options.Threshold = None,
    calibrate: options.Calibrate = None,
    rejudge: options.Rejudge = False,
    learn: options.Learn = True,
    alarm: options.Alarm = None,
    report: Annotated[Path | None, typer.Option(help="HTML file to write.")] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Stream features through a detector; print a verdict for each.

    Example: `unseen score features/ --space space.safetensors --detector online --state state.safetensors`

    `unseen score streams` scores many streams, each by itself.
    """
    chosen = SessionOptions(detector, recall, threshold, calibrate)
    output.check_formats(as_json=as_json, as_csv=as_csv)
    output.check_folders(state, report)
    mark = content_mark(state)
    labels = LabelSpace.load(space)
    session = chosen.session(labels, state)
    known = _read_known(calibrate, labels, recall)
    if not learn and state is None:
        terminal.err.print("nothing learned yet: --no-learn without --state scores with the frozen text")
    samples = load_features(features)
    columns = {"key": output.longest(samples.keys), "name": output.longest(labels.names)}
    out = output.choose(as_json=as_json, as_csv=as_csv, **columns)
    run = StreamRun(session, out, state, learn, mark, known_images=known, is_rejudged=rejudge)
    run.log = stream_page.StreamLog.beside(report) if report else None
    run.alarms = Alarms(UnknownRateAlarm(alarm)) if alarm is not None else None
    if known:
        known.print_result(session, known.calibrate(session), as_json=False)

    def judge(start: int) -> JudgedBatch:
        keys = samples.keys[start : start + BATCH]
        verdicts = run.judge(samples.z[start : start + BATCH], keys)
        return JudgedBatch([(key, None) for key in keys], verdicts, [None] * len(keys))

    starts = range(0, len(samples), BATCH)
    run.judge_all(starts, judge, unit="samples", task=session.detector.name, total=len(samples))
    raise run.finish(report, title=f"unseen score: {features}", as_json=as_json)


def _read_known(source: str | None, labels: LabelSpace, recall: float | None) -> KnownImages | None:
    if source is None:
        return None
    if not is_features(source):
        raise SettingError(f"expected features of known images, got {source}; make them with: unseen encode {source}")
    return read_known(source, labels, RECALL if recall is None else recall)
