"""unseen detect: a folder of photos and a list of names in, a verdict for each photo out."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen import LabelSpace, Session, detectors, threshold
from unseen.cli import resume, terminal
from unseen.cli.mine import given_names, warn, words_bar
from unseen.cli.score import line
from unseen.encoders import Encoder, load_encoder
from unseen.errors import EncoderError, LabelError, SettingError, StateError
from unseen.features import FeatureCache, stream_images
from unseen.images import Batch, Entry, Image, find_images
from unseen.images.order import ORDERS, sort_entries
from unseen.labels import wordnet
from unseen.labels.nearest import near_duplicates
from unseen.report import stream
from unseen.verdicts import Verdict

WIDEST = 60  # columns for a file's name

Say = Callable[[str, Verdict | str], None]  # a file, and its verdict or why it has none


def detect(
    photos: Annotated[list[str], typer.Argument(help="Folders, globs, files, image lists, .tar shards, videos.")],
    labels: Annotated[Path | None, typer.Option(help="Text file with one known name per line; # comments.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A known name; may be given many times.")] = None,
    space: Annotated[Path | None, typer.Option(help="Label space from `unseen mine`, instead of names.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="offline, ViT-B/16, a hub id, a model folder ... (default: offline).")
    ] = None,
    detector: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(sorted(detectors.REGISTRY))} (default: {resume.DETECTOR}).")
    ] = None,
    negatives: Annotated[int, typer.Option(help="How many negative labels to mine for the names.")] = 5_000,
    vocabulary: Annotated[
        int, typer.Option(help="How many words of WordNet to mine them from; 0 reads all 138,495 (minutes, once).")
    ] = 10_000,
    order: Annotated[str, typer.Option(help=f"Who comes when: {', '.join(ORDERS)}.")] = "name",
    state: Annotated[
        Path | None, typer.Option(help="Keep what is learned in this file; go on from it if it is there.")
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="Share of known images the adaptive line should accept (default: 0.95).")
    ] = None,
    cut: Annotated[float | None, typer.Option(help="Use this fixed score as the line instead.")] = None,
    features: Annotated[Path | None, typer.Option(help="Folder that keeps features: nothing is encoded twice.")] = None,
    report: Annotated[Path | None, typer.Option(help="HTML file to write, with thumbnails.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ... (default: a GPU if there is one).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images per step; the state is saved after each.")] = 32,
    root: Annotated[Path | None, typer.Option(help="Where relative paths of an image list start.")] = None,
    stride: Annotated[int, typer.Option(min=1, help="Take every n-th frame of a video.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per image and a summary.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a table for spreadsheets.")] = False,
) -> None:
    """Say of each photo which of your names it is, or that it is none of them. No training, no labels.

    Example: `unseen detect photos/ --label "golden retriever" --label espresso --state state.safetensors`

    Tomorrow `unseen detect more/ --state state.safetensors` goes on where it stopped: the names are kept beside it.
    """
    if as_json and as_csv:
        raise SettingError("expected --json or --csv, got both; choose one")
    resume.usable(detector)
    entries = sort_entries(find_images(photos, root=root, stride=stride), order)
    found = _found_space(space, state, has_names=bool(labels or label))
    names = given_names(labels, label) if labels or label or found is None else []
    model = load_encoder(encoder or (found.encoder if found else "offline"), device=device)
    chosen = _mined(names, model, negatives, vocabulary) if found is None else _checked(found, names, model)
    session = resume.session(chosen, detector, resume.rule(recall, cut), state)
    if state and not state.exists():
        chosen.save(beside(state))
    terminal.err.print(stream.about(session), markup=False, soft_wrap=True)
    cache = FeatureCache(features, model) if features else None
    total = len(entries) if isinstance(entries, Sized) else None
    run = Run(session, state, _printer(entries, as_json=as_json, as_csv=as_csv), pictures=report is not None)
    run.all(stream_images(entries, model, cache, size=batch), total)
    if report:
        stream.write(report, run.log, session, title=f"unseen detect: {' '.join(photos)}")
    run.summary(report, as_json=as_json)
    raise typer.Exit(terminal.SKIPPED if run.log.skipped or run.is_stopped else terminal.DONE)


@dataclass
class Run:
    """A stream on its way through a session, and what has been said of it so far."""

    session: Session
    state: Path | None
    say: Say
    pictures: bool
    log: stream.Log = field(default_factory=stream.Log)
    seen: int = 0
    known: int = 0
    is_stopped: bool = False
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Remember what had been learned before."""
        self.taught_before = self.taught

    @property
    def taught(self) -> int:
        """Return how many images the session has ever learned from."""
        tally = self.session.snapshot.tally
        return int(tally.taught_known + tally.taught_unknown)

    @property
    def rate(self) -> float:
        """Return images per second, decoding and encoding included."""
        return self.seen / max(time.perf_counter() - self.started, 1e-9)

    def all(self, batches: Iterator[tuple[Batch, Any]], total: int | None) -> None:
        """Take every batch, or as many as come before Ctrl-C."""
        with terminal.progress("images") as bar:
            task = bar.add_task("detect", total=total, rate="")
            try:
                for batch, z in batches:
                    self.one(batch, z)
                    bar.update(task, advance=len(batch.rows), rate=f"{self.rate:.1f} per second")
            except KeyboardInterrupt:
                self.is_stopped = True
            finally:
                self.save()

    def one(self, batch: Batch, z: Any) -> None:
        """Observe a batch and say what was found, in order of arrival."""
        verdicts = iter(self._observed(batch, z))
        for row in batch.rows:
            if isinstance(row, Image):
                self.say(row.path, next(verdicts))
            else:
                self.log.skipped.append((row.path, row.reason))
                self.say(row.path, row.reason)
        self.save()

    def save(self) -> None:
        """Keep the state, if there is a place for it."""
        if self.state:
            self.session.save(self.state)

    def summary(self, report: Path | None, *, as_json: bool) -> None:
        """Say in one line, or as JSON, how it went."""
        counts = {
            "known": self.known,
            "unknown": self.seen - self.known,
            "skipped": len(self.log.skipped),
            "learned_from": self.taught - self.taught_before,
            "ever_seen": int(self.session.snapshot.tally.seen),
            "threshold": self.session.threshold,
            "stopped": self.is_stopped,
        }
        if as_json:
            files = {name: str(path) if path else None for name, path in (("state", self.state), ("report", report))}
            terminal.emit({"summary": counts, "images_per_second": round(self.rate, 2), **files})
            return
        told = [
            f"known {self.known:,}",
            f"unknown {self.seen - self.known:,}",
            f"skipped {len(self.log.skipped):,}",
            f"learned from {counts['learned_from']:,} ({counts['ever_seen']:,} ever seen)",
            f"threshold {self.session.threshold:.2f} ({_meaning(self.session.rule)})",
            f"{self.rate:.1f} images per second",
        ]
        told += [f"state saved to {self.state}"] if self.state else []
        told += [f"report in {report}"] if report else []
        told += ["stopped: what is printed is kept"] if self.is_stopped else []
        terminal.err.print(" · ".join(told), markup=False, soft_wrap=True)

    def _observed(self, batch: Batch, z: Any) -> Iterable[Verdict]:
        if not batch:
            return ()
        verdicts = self.session.observe(z)
        self.seen += len(verdicts)
        self.known += int(verdicts.known.sum())
        jpegs = [stream.thumbnail(image.pixels) if self.pictures else None for image in batch]
        self.log.add([image.path for image in batch], verdicts, jpegs)
        return verdicts


def beside(state: Path) -> Path:
    """Return where the label space of a state lies."""
    return state.with_suffix(".space.safetensors")


def _found_space(space: Path | None, state: Path | None, *, has_names: bool) -> LabelSpace | None:
    """Return the label space that was named, or that an earlier run left beside its state."""
    if space:
        return LabelSpace.load(space)
    if state is None or not state.exists():
        if state and not has_names:
            raise LabelError(
                f"expected names, or a state that knows them, got no file at {state}; pass --labels for the first run"
            )
        return None
    if not beside(state).exists():
        raise StateError(f"expected the label space of {state} at {beside(state)}, got no file; name it with --space")
    return LabelSpace.load(beside(state))


def _mined(names: list[str], model: Encoder, negatives: int, vocabulary: int) -> LabelSpace:
    corpus = wordnet().thinned(vocabulary)
    terminal.err.print(f"mining negatives from {corpus.name} (each word is encoded once and then kept)", soft_wrap=True)
    with words_bar() as progress:
        space = LabelSpace.build(names, model, negatives=negatives, corpus=corpus, progress=progress)
    warn(near_duplicates(space))
    return space


def _checked(space: LabelSpace, names: list[str], model: Encoder) -> LabelSpace:
    if names and tuple(names) != space.names:
        raise LabelError(
            f"expected the names of the label space, {', '.join(space.names[:3])} ..., got {', '.join(names[:3])} ...; "
            "leave out --label and --labels, or start another --state file"
        )
    made_by = space.manifest.get("encoder_fingerprint", model.fingerprint)
    if made_by != model.fingerprint:
        raise EncoderError(
            f"expected the encoder of this label space, {space.encoder} ({made_by[:8]}), got {model.name} "
            f"({model.fingerprint[:8]}); pass --encoder {space.encoder}"
        )
    return space


def _printer(entries: Iterable[Entry], *, as_json: bool, as_csv: bool) -> Say:
    if as_json:
        return _say_json
    if as_csv:
        return _csv()
    width = max((len(entry.path) for entry in entries), default=0) if isinstance(entries, list) else WIDEST
    return _plain(min(width, WIDEST))


def _say_json(path: str, verdict: Verdict | str) -> None:
    terminal.emit({"path": path, **({"skipped": verdict} if isinstance(verdict, str) else verdict._asdict())})


def _csv() -> Say:
    table = csv.writer(sys.stdout)
    table.writerow(("path", "verdict", *Verdict._fields, "reason"))

    def say(path: str, verdict: Verdict | str) -> None:
        if isinstance(verdict, str):
            table.writerow((path, "skipped", *[""] * len(Verdict._fields), verdict))
        else:
            table.writerow((path, "known" if verdict.known else "unknown", *verdict, ""))

    return say


def _plain(width: int) -> Say:
    def say(path: str, verdict: Verdict | str) -> None:
        print(f"{path:<{width}} skipped: {verdict}" if isinstance(verdict, str) else line(path, verdict, width=width))

    return say


def _meaning(rule: threshold.ThresholdRule[Any]) -> str:
    return f"adaptive, aims at {100 * rule.recall:g} % of known" if isinstance(rule, threshold.Adaptive) else rule.name
