"""unseen detect: a folder of photos and a list of names in, a verdict for each photo out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from jaxtyping import Bool
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.alarm import UnknownRateAlarm
from unseen.cli import calibrate as calibration
from unseen.cli import label_space, options, output, terminal
from unseen.cli.alarms import Alarms
from unseen.cli.calibrate import KnownImages
from unseen.cli.examples import ExampleImages, names_of
from unseen.cli.learned_files import LearnedFiles
from unseen.cli.session import SessionOptions
from unseen.cli.stream_run import JudgedBatch, StreamRun
from unseen.discover.edits import space_path
from unseen.encoders import Encoder, load_encoder
from unseen.encoders.device import named_precision
from unseen.features import FeatureCache, stream_images
from unseen.images import Batch, Entry, Image, find_images
from unseen.images.decode import jpeg_thumbnail
from unseen.images.sources import ORDERS, FoundEntries, sort_entries
from unseen.labels.mining import NEGATIVES
from unseen.report import stream_page
from unseen.storage.locks import content_mark
from unseen.threshold import ByExamples


def detect(
    photos: Annotated[list[str], typer.Argument(help="Folders, globs, files, image lists, .tar shards, videos.")],
    labels: options.Labels = None,
    label: options.Label = None,
    space: Annotated[Path | None, typer.Option(help="Label space from `unseen mine`, instead of names.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="offline, ViT-B/16, a hub id, a model folder ... (default: offline).")
    ] = None,
    detector: options.Detector = None,
    negatives: Annotated[int, typer.Option(min=0, help="How many negative labels to mine for the names.")] = NEGATIVES,
    vocabulary: options.Vocabulary = None,
    order: Annotated[str, typer.Option(help=f"Who comes when: {', '.join(ORDERS)}.")] = "name",
    state: options.State = None,
    recall: options.Recall = None,
    threshold: options.Threshold = None,
    calibrate: options.Calibrate = None,
    examples: options.Examples = None,
    rejudge: options.Rejudge = False,
    again: options.Again = False,
    learn: options.Learn = True,
    alarm: options.Alarm = None,
    features: Annotated[Path | None, typer.Option(help="Folder that keeps features: nothing is encoded twice.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML file to write, with thumbnails.")] = None,
    device: options.Device = None,
    precision: options.Precision = None,
    runtime: options.Runtime = None,
    batch: options.Batch = 32,
    root: options.Root = None,
    stride: options.Stride = 1,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """Print for each photo which of your names it shows, or that it is unknown. No training, no labels.

    Example: `unseen detect photos/ --label "golden retriever" --label espresso --state state.safetensors`

    A few photos per class help: `unseen detect photos/ --examples known/`, a folder per class (docs/examples.md).

    Tomorrow `unseen detect more/ --state state.safetensors` goes on where it stopped: the names are kept beside it.
    Files that the state has learned are judged and not learned twice: a command that was stopped can be repeated.
    """
    chosen = SessionOptions(detector, recall, threshold, calibrate)
    output.check_formats(as_json=as_json, as_csv=as_csv)
    output.check_folders(state, report)
    if features:
        output.check_writable(features)
    alarms = Alarms(UnknownRateAlarm(alarm)) if alarm is not None else None
    mark = content_mark(state)
    wanted = calibration.RECALL if recall is None else recall
    known = calibration.find_known(calibrate, wanted) if calibrate else None
    found = find_images(photos, root=root, stride=stride)
    entries = sort_entries(found, order)
    saved = label_space.saved_space(space, state, has_names=bool(labels or label or examples))
    taught = ExampleImages.find(examples, saved=saved, state=state) if examples else None
    names = names_of(labels, label, taught, saved)
    if not saved:
        chosen.kind.check_counts(len(names), negatives)
    tower = encoder or (saved.encoder if saved else "offline")
    model = load_encoder(tower, device=device, dtype=named_precision(precision), runtime=runtime)
    if saved:
        label_space.check_space(saved, names, model)
    used = saved or label_space.mine_space(names, model, negatives=negatives, vocabulary=vocabulary)
    if taught:
        used = taught.teach(used, model, recall=None if calibrate or threshold is not None else wanted)
    session = chosen.session(used, state)
    images = _known_images(calibrate, known, used, model, wanted)
    if state and learn and not state.exists():
        used.save(space_path(state))
    terminal.err.print(stream_page.about(session), markup=False)
    if images:
        images.print_result(session, images.calibrate(session), as_json=False)
    elif taught:
        _warn_suspects(session, wanted)
    out = output.choose(as_json=as_json, as_csv=as_csv, key=_width(entries), name=output.longest(used.names))
    run = DetectRun(session, out, state, learn, mark, known_images=images, is_rejudged=rejudge, again=again)
    run.log, run.alarms = stream_page.StreamLog.beside(report) if report else None, alarms
    if state and learn:
        run.learned = LearnedFiles.of_state(state, int(session.snapshot.tally.seen))
    run.not_images = found.others if isinstance(found, FoundEntries) else 0
    run.skipped = sum(len(one.skipped) for one in (taught, images) if one)
    cache = FeatureCache(features, model) if features else None
    batches = stream_images(entries, model, cache, size=batch)
    total = len(entries) if isinstance(entries, Sized) else None
    run.judge_all(batches, run.judge_batch, unit="images", task="detect", total=total)
    raise run.finish(report, title=f"unseen detect: {' '.join(photos)}", as_json=as_json)


def _known_images(
    source: str | None, entries: Iterable[Entry] | None, labels: LabelSpace, model: Encoder, recall: float
) -> KnownImages | None:
    if source is None:
        return None
    if entries is None:
        return calibration.read_known(source, labels, recall)
    images = calibration.encode_known(entries, model, recall)
    calibration.warn_folders(images.keys, labels)
    return images


def _warn_suspects(session: Session, recall: float) -> None:
    """Warn about examples that look unknown, where they set the threshold."""
    spared = session.detector.labels.spared
    if spared and isinstance(session.rule, ByExamples):
        KnownImages(spared.z, spared.keys, recall).warn_suspects(session)


@dataclass
class DetectRun(StreamRun):
    """A run over images, with a record of those that the state has learned."""

    learned: LearnedFiles | None = None  # what the state has learned
    again: bool = False  # whether that is learned again

    def judge_batch(self, decoded: tuple[Batch, Any]) -> JudgedBatch:
        """Judge the images of a batch; what could not be read is skipped."""
        batch, z = decoded
        verdicts = self.judge(z, [image.path for image in batch], self._claim(batch)) if batch else None
        self.skipped += len(batch.skipped)
        inputs = [(row.path, None if isinstance(row, Image) else row.reason) for row in batch.rows]
        return JudgedBatch(inputs, verdicts, [self._thumbnail(image) for image in batch])

    def _claim(self, batch: Batch) -> Bool[Tensor, " n"] | None:
        if self.learned is None:
            return None
        return self.learned.claim(batch.images, int(self.session.snapshot.tally.seen), again=self.again)

    def save(self) -> None:
        """Save the record of what was learned, then the state."""
        if self.learned:
            self.learned.save()
        super().save()

    def _thumbnail(self, image: Image) -> bytes | None:
        return jpeg_thumbnail(image.pixels, 2 * stream_page.SIDE, quality=72) if self.log else None


def _width(entries: Iterable[Entry]) -> int:
    """The width of the column for the keys."""
    keys = entries.keys if isinstance(entries, FoundEntries) else (entry.path for entry in entries)
    return output.longest(keys) if isinstance(entries, Sequence) else output.KEY
