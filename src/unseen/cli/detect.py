"""unseen detect: a folder of photos and a list of names in, a verdict for each photo out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli import options, output


def detect(
    photos: options.Photos,
    label: options.Label = None,
    labels: options.Labels = None,
    examples: options.Examples = None,
    encoder: Annotated[
        str | None, typer.Option(help="offline, ViT-B/16, a hub id, a model folder ... (default: offline).")
    ] = None,
    state: options.State = None,
    report: options.Report = None,
    file: options.Output = None,
    as_json: options.AsJson = False,
    never: options.Never = None,
    space: options.SpaceInstead = None,
    detector: options.Detector = None,
    recall: options.Recall = None,
    threshold: options.Threshold = None,
    calibrate: options.Calibrate = None,
    keep_odd: options.KeepOdd = False,
    only: options.Only = None,
    live: options.Live = False,
    alarm: options.Alarm = None,
    learn: options.Learn = True,
    features: Annotated[
        str | None,
        typer.Option(
            help="Folder that keeps vectors, so that nothing is encoded twice, or none (default: beside the state).",
            **options.MORE,
        ),
    ] = None,
    device: options.Device = None,
    batch: options.Batch = 32,
    stride: options.Stride = 1,
) -> None:
    """Print for each photo which of your names it shows, or that it is unknown. No training, no labels.

    Example: `unseen detect photos/ --label "golden retriever" --label espresso --state state.safetensors`

    A folder is judged at its end, by everything learned from it; `--live` prints as photos come, as for a video.

    A few photos per class help: `unseen detect photos/ --examples known/`, a folder per class (docs/examples.md).

    Tomorrow `unseen detect more/ --state state.safetensors` goes on where it stopped: the names are kept beside it.
    Files that the state has learned are judged and not learned twice: a command that was stopped can be repeated.
    """
    form = output.Format.of(as_json=as_json, path=file, only=only)
    output.check_folders(state, report)
    if features not in (None, "none"):
        output.check_writable(Path(features))

    from unseen.alarm import StreamAlarms
    from unseen.cli import run, session
    from unseen.images import find_images
    from unseen.report.stream_page import StreamLog
    from unseen.storage.locks import content_mark

    chosen, mark = session.SessionOptions(detector, recall, threshold, calibrate, keep_odd), content_mark(state)
    alarms, log = StreamAlarms.of(alarm), StreamLog.beside(report) if report else None
    entries = find_images(photos, stride=stride)
    has_end = isinstance(entries, Sized)
    names = session.NameOptions(labels, label, space, examples, encoder, device, never or ())
    ready = session.prepare(names, chosen, state)
    cache = session.vector_cache(features, state if learn and has_end else None, ready.model)
    with form.lines(key=_width(entries), name=output.longest(ready.session.detector.labels.names)) as lines:
        stream = run.Run(ready.session, lines, state, mark, learn, ready.known_images, alarms, log)
        stream.live, stream.skipped = live or not has_end, ready.skipped
        stream.not_images = getattr(entries, "others", 0)
        if state and learn:
            stream.learned = run.LearnedFiles.of_state(state, stream.seen)
        total = len(entries) if isinstance(entries, Sized) else None
        stream.go(run.photo_steps(entries, ready.model, cache, size=batch), unit="images", total=total)
    raise stream.finish(report, title=f"unseen detect: {' '.join(photos)}", as_json=as_json)


def _width(entries: Iterable[Any]) -> int:
    """The width of the column for the keys."""
    keys = getattr(entries, "keys", None) or (entry.path for entry in entries)
    return output.longest(keys) if isinstance(entries, Sequence) else output.KEY
