"""unseen score: verdicts for features that were encoded before."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace, Session
from unseen.alarm import UnknownRateAlarm
from unseen.cli import options, output, terminal
from unseen.cli.alarms import Alarms
from unseen.cli.calibrate import RECALL, KnownImages, is_features, read_known
from unseen.cli.session import SessionOptions
from unseen.cli.stream_run import StreamRun
from unseen.errors import SettingError
from unseen.features import Features, load_features
from unseen.report import stream_page
from unseen.scale import cluster, merge
from unseen.storage.locks import content_mark
from unseen.verdicts import Verdicts

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
    ray: options.Ray = None,
    shards: Annotated[
        int, typer.Option(help="Observers that share one stream; docs/scale.md says which detectors lose by it.", min=1)
    ] = 1,
    merge_every: Annotated[int, typer.Option(help="With --shards: most samples between two merges.", min=1)] = 256,
    learn: options.Learn = True,
    alarm: options.Alarm = None,
    report: Annotated[Path | None, typer.Option(help="HTML file to write.")] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Stream features through a detector; print a verdict for each.

    Example: `unseen score features/ --space space.safetensors --detector online --state state.safetensors`

    `--shards 8 --ray auto` lets eight observers share the stream; the recommended detector gives the sequential result.
    `unseen score streams` scores many streams, each by itself.
    """
    chosen = SessionOptions(detector, recall, threshold, calibrate)
    output.check_formats(as_json=as_json, as_csv=as_csv)
    output.check_folders(state, report)
    mark = content_mark(state)
    _check_shards(shards, ray, learn=learn)
    labels = LabelSpace.load(space)
    session = chosen.session(labels, state)
    known = _read_known(calibrate, labels, recall)
    if not learn and state is None:
        terminal.err.print("nothing learned yet: --no-learn without --state scores with the frozen text")
    samples = load_features(features)
    columns = {"key": output.longest(samples.keys), "name": output.longest(labels.names)}
    out = output.choose(as_json=as_json, as_csv=as_csv, **columns)
    batch = BATCH if shards == 1 else merge_every * max(1, BATCH // merge_every)  # a call of observe ends with a merge
    with _sharded(session, shards, merge_every, ray) as shared:
        run = ScoreRun(shared, out, state, learn, mark, log=stream_page.StreamLog.beside(report) if report else None)
        run.alarms = Alarms(UnknownRateAlarm(alarm)) if alarm is not None else None
        _judge_all(run, samples, batch, known, rejudge=rejudge)
    if report and run.log:
        stream_page.write(report, run.log, run.session, title=f"unseen score: {features}")
    run.print_summary(as_json=as_json, report=report)
    raise typer.Exit(run.exit_code)


@dataclass
class ScoreRun(StreamRun):
    """A run over features, with a log where there will be a report."""

    log: stream_page.StreamLog | None = None


def _check_shards(shards: int, ray: str | None, *, learn: bool) -> None:
    if ray and shards == 1:
        raise SettingError(
            "expected --shards with --ray, got none: one stream is one scan; say how many observers may share it, or "
            "score many streams with `unseen score streams --key COLUMN`"
        )
    if shards > 1 and not learn:
        raise SettingError("expected --shards for a stream that learns, got --no-learn; leave --shards out")


def _read_known(source: str | None, labels: LabelSpace, recall: float | None) -> KnownImages | None:
    if source is None:
        return None
    if not is_features(source):
        raise SettingError(f"expected features of known images, got {source}; make them with: unseen encode {source}")
    return read_known(source, labels, RECALL if recall is None else recall)


def _judge_all(run: ScoreRun, samples: Features, batch: int, known: KnownImages | None, *, rejudge: bool) -> None:
    judged = []
    if known:
        known.print_result(run.session, known.calibrate(run.session), as_json=False)
    with terminal.progress("samples") as bar, run.until_stopped():
        task = bar.add_task(run.session.detector.name, total=len(samples), rate="")
        for start in range(0, len(samples), batch):
            verdicts = run.judge(samples.z[start : start + batch], samples.keys[start : start + batch])
            if rejudge:
                judged.append(verdicts)
            else:
                _print(run, verdicts, samples.keys[start : start + batch])
            if known and run.learn:
                known.follow(run.session)
            run.save_when_due()
            bar.update(task, advance=len(verdicts), rate=f"{run.rate:,.0f} per second")
        if known and run.learn:
            known.follow(run.session, last=True)

    for number, verdicts in enumerate(judged):
        _print(run, run.rejudge(verdicts), samples.keys[batch * number : batch * (number + 1)])


def _print(run: ScoreRun, verdicts: Verdicts, keys: Sequence[str]) -> None:
    if run.log:
        run.log.add(keys, verdicts, [None] * len(verdicts))
    for record in verdicts.records(keys):
        run.output.verdict(record)


@contextmanager
def _sharded(session: Session, shards: int, every: int, ray: str | None) -> Iterator[Session]:
    """Yield a session whose stream several observers share, in this process or as actors."""
    detector = session.detector
    if shards == 1:
        yield session
    elif ray is None:
        yield session.at(session.snapshot, detector=merge.ShardedDetector.of(detector, shards=shards, every=every))
    else:
        with cluster.connect(ray) as joined, merge.ray_observers(joined, detector, shards) as observers:
            shared = merge.ShardedDetector.of(detector, shards=shards, every=every, observers=observers)
            yield session.at(session.snapshot, detector=shared)
