"""unseen detect: a folder of photos and a list of names in, a verdict for each photo out."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli import options, output, sort
from unseen.errors import EncoderError, SettingError

if TYPE_CHECKING:
    from unseen.cli.regions import RegionRun

REGIONS: dict[str, Any] = {"rich_help_panel": "Parts of photos"}


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
    calibrate: options.Calibrate = None,
    only: options.Only = None,
    live: options.Live = False,
    alarm: options.Alarm = None,
    learn: options.Learn = True,
    device: options.Device = None,
    sort_into: Annotated[
        Path | None, typer.Option(help="Folder that gets a folder per name, doubtful and unknown.", **options.MORE)
    ] = None,
    sort_as: Annotated[str, typer.Option(help="How: plan says what it would do; link, copy.", **options.MORE)] = "plan",
    boxes: Annotated[
        Path | None, typer.Option(help="Judge each box of a detector: COCO .json, .csv, YOLO or VOC folder.", **REGIONS)
    ] = None,
    pad: Annotated[str, typer.Option(help="Margin around a box, of its longer side.", **REGIONS)] = "10%",
    windows: Annotated[
        int | None, typer.Option(min=1, max=8, help="Without a detector: overlapping windows, N a side.", **REGIONS)
    ] = None,
    keep: Annotated[
        bool | None,
        typer.Option("--keep-known/--drop-unknown", help="Which boxes -o writes back (default: all).", **REGIONS),
    ] = None,
) -> None:
    """Print for each photo which of your names it shows, or that it is unknown. No training, no labels.

    Example: `unseen detect photos/ --label "golden retriever" --label espresso --state state.safetensors`

    A folder is judged at its end, by everything learned from it; `--live` prints as photos come, as for a video.

    A few photos per class help: `unseen detect photos/ --examples known/`, a folder per class (docs/examples.md).

    `--sort-into out/` says what would go where, `--sort-as link` makes links, and `unseen undo` removes them again.

    Each box of an object detector is judged as an image: `unseen detect photos/ --boxes detections.json -o judged.json`

    Tomorrow `unseen detect more/ --state state.safetensors` goes on where it stopped: the names are kept beside it.
    Files that the state has learned are judged and not learned twice: a command that was stopped can be repeated.
    """
    output.check_folders(state, report)
    if sort_into:
        sort.check(sort_into, sort_as)
    regions: RegionRun | None = None
    if boxes is not None or windows is not None or keep is not None:
        from unseen.cli.regions import RegionRun

        regions = RegionRun.of_options(photos, boxes, pad, windows, file, keep)
    if sort_into and regions:
        raise SettingError("expected --sort-into for whole photos, got it for parts; cut them out with unseen review")
    form = output.Format.of(as_json=as_json, path=None if regions and regions.target else file, only=only)
    form = form._replace(fields=output.REGION_FIELDS) if regions else form

    from unseen.alarm import UnknownRateAlarm
    from unseen.checkpoint import features_folder
    from unseen.cli import run, session
    from unseen.features import FeatureCache
    from unseen.images import find_images
    from unseen.report.stream_page import StreamLog
    from unseen.storage.files import content_mark

    mark = content_mark(state)
    rule = None if alarm is None else UnknownRateAlarm(alarm)
    log = StreamLog() if report else None
    entries: Iterable[Any] = find_images(photos) if regions is None else regions.entries
    if regions and regions.grid:
        entries, learn = regions.entries.photos, False  # parts that show half of a thing would teach wrongly
    kept, judged = state if learn else None, list[output.Record]()
    has_end, width = isinstance(entries, Sized), output.KEY
    if (keys := getattr(entries, "keys", None)) is not None:
        width = output.longest(keys)
    ready = session.prepare(
        state, labels, label, encoder, device=device, space=space, examples=examples, never=never or (),
        detector=detector, recall=recall, calibrate=calibrate,
    )  # fmt: skip
    cache: FeatureCache | None = None
    if kept and has_end:  # vectors are kept beside the state
        try:
            cache = FeatureCache(features_folder(kept), ready.model)
        except EncoderError as error:
            output.warn(f"{error}; nothing is kept")
    with form.lines(key=width, name=output.longest(ready.session.detector.labels.names)) as lines:
        lines = regions.around(lines, ready.session.detector.labels.names) if regions else lines
        lines = output.both(lines, judged.append) if sort_into else lines
        stream = run.Run(ready.session, lines, kept, mark, learn, ready.known_images, rule, log)
        stream.live, stream.skipped = live or not has_end, ready.skipped
        stream.not_images = getattr(entries, "others", 0)
        if kept:
            stream.learned = run.LearnedFiles.of_state(kept, stream.seen)
        total = len(entries) if isinstance(entries, Sized) else None
        steps = regions and regions.grid and regions.steps(ready.model, ready.session)
        stream.go(steps or run.photo_steps(entries, ready.model, cache), unit="images", total=total)
    if sort_into:
        sort.sort(judged, sort_into, sort_as, only or ())
    if regions:
        regions.finish(kept, log)
    raise stream.finish(report, title=f"unseen detect: {' '.join(photos)}", as_json=as_json)
