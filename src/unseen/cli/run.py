"""One stream on its way through a session: read, encode, observe, verdicts, lines. `detect` and `score` walk it.

Loads torch: commands import it when they run.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import typer
from jaxtyping import Bool, Float
from torch import Tensor

from unseen import Session
from unseen.alarm import AlarmState, UnknownRateAlarm
from unseen.cli import output
from unseen.cli.calibration import KnownImages
from unseen.cli.session import threshold_in_words
from unseen.encoders import Encoder
from unseen.features import FeatureCache, Features, stream_images
from unseen.images import Entry, Image
from unseen.images.decode import jpeg_thumbnail
from unseen.report import stream_page
from unseen.snapshot import Snapshot
from unseen.storage.files import check_unchanged, load_tensors, locked, save_tensors
from unseen.verdicts import VERDICTS, Verdicts

BATCH = 32  # photos between two looks at Ctrl-C
SAVING_SHARE = 0.02  # of the time of a run: so long runs do not pay for a state that is written whole
LEARNED_KIND = "learned-files"
MOST_LEARNED = 1 << 17  # images of which a state remembers that it learned them, the latest; 16 bytes each


class Step(NamedTuple):
    """The next inputs of a stream: the key of each, with the reason of those skipped, and features of the others."""

    inputs: Sequence[tuple[str, str | None]]
    z: Float[Tensor, "T d"] | None  # None where every input was skipped
    images: Sequence[Image] = ()  # where they were photos

    @property
    def keys(self) -> list[str]:
        """The keys of the inputs that can be judged."""
        return [key for key, reason in self.inputs if reason is None]


def photo_steps(
    entries: Iterable[Entry], model: Encoder, cache: FeatureCache | None = None, *, size: int = BATCH
) -> Iterator[Step]:
    """Yield images as they are read and encoded."""
    for batch, z in stream_images(entries, model, cache, size=size):
        inputs = [(row.path, None if isinstance(row, Image) else row.reason) for row in batch.rows]
        yield Step(inputs, z if batch else None, batch.images)


def feature_steps(samples: Features, *, size: int) -> Iterator[Step]:
    """Yield features that were encoded before."""
    for start in range(0, len(samples), size):
        keys = samples.keys[start : start + size]
        yield Step([(key, None) for key in keys], samples.z[start : start + size])


class Judged(NamedTuple):
    """A step without its pictures, the verdicts on it, which samples were new to the state, and thumbnails."""

    step: Step
    verdicts: Verdicts | None
    is_new: Bool[Tensor, " T"]
    jpegs: Sequence[bytes]


@dataclass
class Run:
    """One stream on its way through a session, and the counts of its verdicts."""

    session: Session
    lines: output.Lines
    state: Path | None = None  # where the session is saved; None where nothing is kept, or may change
    mark: str = ""  # of the state file, read before the session was loaded
    learn: bool = True
    known_images: KnownImages | None = None  # to calibrate with as the stream grows
    alarm: UnknownRateAlarm | None = None
    log: stream_page.StreamLog | None = None  # where there will be a report
    learned: LearnedFiles | None = None  # photos that the state has learned, which are not learned twice
    live: bool = False  # whether verdicts are printed as images come, not at the end by everything learned
    saving_share: float = SAVING_SHARE
    skipped: int = 0
    not_images: int = 0  # files in the folders that are no images
    judged: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # of the verdicts that were printed
    learned_before: int = 0  # images that were judged only, because the state has learned them
    repeated: int = 0  # images that are examples as well
    is_stopped: bool = False
    started: float = field(default_factory=time.perf_counter)
    next_save: float = 0.0  # moment before which the state is not saved again
    taught_before: int = 0  # images that the session had learned from
    alarm_state: AlarmState | None = None

    @property
    def taught(self) -> int:
        """How many images the session has ever learned from."""
        tally = self.session.snapshot.tally
        return int(tally.taught_known + tally.taught_unknown)

    @property
    def seen(self) -> int:
        """How many images the session has ever seen."""
        return int(self.session.snapshot.tally.seen)

    @property
    def rate(self) -> float:
        """Images per second, decoding and encoding included."""
        return self.judged / max(time.perf_counter() - self.started, 1e-9)

    def go(self, steps: Iterable[Step], *, unit: str, total: int | None) -> None:
        """Judge every step, or as many as come before Ctrl-C or SIGTERM, and print the verdicts; save the state.

        What has an end is judged at its end, by everything learned. Nobody else changes the state meanwhile.
        """
        waiting: list[Judged] = []
        start, self.taught_before = self.session.snapshot, self.taught
        with locked(self.state) if self.state else nullcontext():
            if self.state:
                check_unchanged(self.state, self.mark)
            try:
                with output.progress(unit) as bar:
                    task = bar.add_task("judge", total=total, rate="")
                    for step in steps:
                        waiting.append(self.judge(step))
                        if self.live or not self.learn:  # nothing that comes changes these verdicts
                            self.show(waiting.pop())
                        if self.known_images and self.learn:
                            self.known_images.follow(self.session)
                        self.save_when_due()
                        bar.update(task, advance=len(step.inputs), rate=f"{self.rate:,.1f} per second")
            except KeyboardInterrupt:
                self.is_stopped = True
            finally:
                if self.known_images and self.learn:
                    self.known_images.follow(self.session, last=True)
                self.save()
            if waiting:
                waiting = self._judged_again(waiting, start)
                self.save()
        for judged in waiting:
            self.show(judged)

    def judge(self, step: Step) -> Judged:
        """A step with the verdicts on it, learning from what is new unless `learn` is False."""
        self.skipped += len(step.inputs) - len(step.keys)
        side = 2 * stream_page.NUMBERS.side
        jpegs = [jpeg_thumbnail(image.pixels, side, quality=72) for image in step.images] if self.log else []
        if step.z is None:
            return Judged(step._replace(images=()), None, torch.zeros(0, dtype=torch.bool), jpegs)
        is_new = torch.full((len(step.keys),), self.learn)
        if self.learned and self.learn:
            is_new = self.learned.claim(step.images, self.seen)
            self.learned_before += int((~is_new).sum())
        keys = list(compress(step.keys, is_new.tolist()))
        parts = [self.session.observe(step.z[is_new], keys)] if keys else []
        verdicts = in_order(is_new, parts + ([self.session.score(step.z[~is_new])] if not is_new.all() else []))
        labels = self.session.detector.labels
        if copies := [one.contains(step.z) for one in (labels.examples, labels.spared) if one is not None]:
            self.repeated += int(torch.stack(copies).any(0).sum())
        self.judged += len(verdicts)
        return Judged(step._replace(images=()), verdicts, is_new, jpegs)

    def _judged_again(self, waiting: Sequence[Judged], start: Snapshot) -> list[Judged]:
        """The steps with verdicts by everything learned; the threshold is set by the new margins of what is new."""
        if not (rows := [one.step.z for one in waiting if one.step.z is not None]):
            return list(waiting)
        z, is_new = torch.cat(rows), torch.cat([one.is_new for one in waiting])
        parts = [self.session.rejudge(z[is_new], since=start)] if is_new.any() else []
        verdicts = in_order(is_new, parts + ([self.session.score(z[~is_new])] if not is_new.all() else []))
        places = torch.arange(len(z)).split([len(one.is_new) for one in waiting])
        return [
            one._replace(verdicts=verdicts.select(own) if len(own) else None)
            for one, own in zip(waiting, places, strict=True)
        ]

    def show(self, judged: Judged) -> None:
        """Print the verdicts on a step, and what was skipped, in order of arrival."""
        step, verdicts, _, jpegs = judged
        records = iter(()) if verdicts is None else verdicts.records(step.keys)
        if verdicts is not None:
            self.counts.update(verdicts.counts)
            if self.alarm:
                self._watch(self.alarm, verdicts)
            if self.log:  # else memory would grow with the stream
                self.log.add(step.keys, verdicts, jpegs or [None] * len(verdicts))
        for key, reason in step.inputs:
            if reason is None:
                self.lines.verdict(next(records))
                continue
            if self.log:
                self.log.skipped.append((key, reason))
            self.lines.skipped(key, reason)

    def _watch(self, alarm: UnknownRateAlarm, verdicts: Verdicts) -> None:
        """Say once that more images are unknown than allowed; what a threshold that warms up decides does not count."""
        before = self.alarm_state or alarm.start()
        self.alarm_state = alarm.update(before, verdicts.unknown[~verdicts.warming].numpy())
        if self.alarm_state.raised_at is not None and before.raised_at is None:
            words = f"more than {100 * alarm.allowed:g} % of the images are unknown"
            output.err.print(f"[bold red]alarm[/] at image {self.counts.total():,}: {words}")

    def save_when_due(self) -> None:
        """Save the state, unless saving would then have taken more than its share of the time since the last."""
        if (began := time.perf_counter()) < self.next_save:
            return
        self.save()
        ended = time.perf_counter()
        self.next_save = ended + (ended - began) / self.saving_share

    def save(self) -> None:
        """Save the record of what was learned, then the state, if it has a file."""
        if self.state:
            if self.learned:
                self.learned.save()
            self.session.save(self.state)

    def finish(self, report: Path | None, *, title: str, as_json: bool) -> typer.Exit:
        """Write the report, print the summary, and return what ends the command: 1 where something was skipped."""
        if report and self.log:
            stream_page.write(report, self.log, self.session, title=title)
        if self.repeated:
            output.warn(f"{self.repeated:,} of the images are among the examples; their verdicts say little")
        self._print_summary(report, as_json=as_json)
        return typer.Exit(output.SKIPPED if self.skipped or self.is_stopped else output.DONE)

    def _print_summary(self, report: Path | None, *, as_json: bool) -> None:
        """Print on one line (counts, threshold, files), or as one JSON object, how the run went."""
        counts: dict[str, Any] = {
            **{word: self.counts[word] for word in VERDICTS},
            "skipped": self.skipped,
            "not_images": self.not_images,
            "learned_from": self.taught - self.taught_before,
            "learned_before": self.learned_before,
            "seen": self.seen,
        }
        if as_json:
            counts |= {"threshold": self.session.threshold, "recall_interval": self.session.recall_interval}
            counts |= {"stopped": self.is_stopped}
            if alarm := self.alarm:
                now = self.alarm_state or alarm.start()
                shown = {"allowed": alarm.allowed, "between": alarm.between, "evidence": alarm.share(now)}
                counts |= {"alarm": shown | {"unknown_rate_raised": now.raised_at is not None}}
            saved = {name: path and str(path) for name, path in (("state", self.state), ("report", report))}
            output.emit({"summary": counts, "images_per_second": round(self.rate, 2), **saved})
            return
        words = *VERDICTS, "skipped", "not_images", "learned_before"
        parts = [f"{one.replace('_', ' ')} {counts[one]:,}" for one in words if counts[one] or one in VERDICTS]
        parts += [threshold_in_words(self.session)] if self.seen else []
        parts += ["stopped: what is printed is kept"] if self.is_stopped else []
        parts += [f"report in {report}"] if report else []
        parts += ["state saved"] if self.state else []
        output.say(" · ".join(parts))


def in_order(is_new: Bool[Tensor, " T"], parts: Sequence[Verdicts]) -> Verdicts:
    """The verdicts on samples in their order, of those on the new ones and on the others."""
    rows = torch.cat([is_new.nonzero().flatten(), (~is_new).nonzero().flatten()])
    return parts[0] if len(parts) == 1 else Verdicts.joined(parts).select(rows.argsort())


@dataclass
class LearnedFiles:
    """The images that a state has learned, oldest first, so that a repeated command learns nothing twice.

    An image is recognised by its path and its pixels together, and recorded with its place in the stream. The record
    is written before the state: places beyond what a state has seen, after a crash or an undone edit, are dropped.
    """

    path: Path
    places: dict[int, int] = field(default_factory=dict)
    most: int = MOST_LEARNED

    @classmethod
    def of_state(cls, state: Path, seen: int) -> LearnedFiles:
        """The record beside a state that has seen so many images; an empty one where there is none."""
        path = state.with_suffix(".learned.safetensors")
        if not path.exists():
            return cls(path)
        tensors, _ = load_tensors(path, kind=LEARNED_KIND)
        pairs = zip(tensors["digest"].tolist(), tensors["place"].tolist(), strict=True)
        return cls(path, {one: place for one, place in pairs if place < seen})

    def claim(self, images: Sequence[Image], seen: int) -> Bool[Tensor, " n"]:
        """Which images are new, and record these as the next that are learned."""
        is_new = []
        for one in map(digest, images):
            is_new.append(one not in self.places)
            if is_new[-1]:
                self.places[one] = seen + sum(is_new) - 1
        return torch.tensor(is_new, dtype=torch.bool)

    def save(self) -> None:
        """Write the latest `most`, whole or not at all."""
        latest = list(self.places.items())[-self.most :]
        self.places = dict(latest)
        one, place = torch.tensor(latest, dtype=torch.int64).reshape(-1, 2).T
        tensors = {"digest": one.contiguous(), "place": place.contiguous()}
        save_tensors(self.path, tensors, kind=LEARNED_KIND, header="{}")


def digest(image: Image) -> int:
    """64 bits that change with the path of an image, its size or any of its pixels."""
    path = image.path if "://" in image.path else os.path.abspath(image.path)
    made = hashlib.sha256(f"{path}\0{image.pixels.size}\0".encode(errors="surrogateescape"))
    made.update(image.pixels.tobytes())
    return int.from_bytes(made.digest()[:8], "little", signed=True)
