"""A command that sends one stream through a session: prints verdicts, saves the state, sums up."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import typer
from jaxtyping import Bool, Float
from torch import Tensor

from unseen import Session
from unseen.cli import terminal
from unseen.cli.alarms import Alarms
from unseen.cli.calibrate import KnownImages
from unseen.cli.output import Output, Record
from unseen.report import stream_page
from unseen.storage.locks import check_unchanged, locked
from unseen.threshold import Adaptive, ByExamples, Calibrated
from unseen.verdicts import Verdicts

UNSURE = 0.15  # of recall that may be missing before the summary asks for known photos
SAVING_SHARE = 0.02  # of the time of a run: so long runs do not pay for a state that is written whole

B = TypeVar("B")


class JudgedBatch(NamedTuple):
    """One batch: key of every input with the reason of those skipped, verdicts and thumbnails of the others."""

    inputs: Sequence[tuple[str, str | None]]
    verdicts: Verdicts | None
    jpegs: Sequence[bytes | None]


@dataclass
class StreamRun:
    """One stream on its way through a session, and the counts of its verdicts."""

    session: Session
    output: Output
    state: Path | None = None  # where the session is saved
    learn: bool = True
    mark: str = ""  # of the state file, read before the session was loaded
    judged: int = 0
    known: int = 0
    skipped: int = 0
    not_images: int = 0  # files in the folders that are no images
    learned_before: int = 0  # images that were judged only, because the state has learned them
    repeated: int = 0  # images that are examples as well
    is_stopped: bool = False
    alarms: Alarms | None = None
    started: float = field(default_factory=time.perf_counter)
    next_save: float = 0.0  # moment before which the state is not saved again
    known_images: KnownImages | None = None  # to calibrate with as the stream grows
    is_rejudged: bool = False  # whether verdicts are printed at the end, under the final threshold
    waiting: list[JudgedBatch] = field(default_factory=list)  # to be printed then
    log: stream_page.StreamLog | None = None  # where there will be a report

    def __post_init__(self) -> None:
        """Remember what had been learned before."""
        self.taught_before = self.taught

    @property
    def taught(self) -> int:
        """How many images the session has ever learned from."""
        tally = self.session.snapshot.tally
        return int(tally.taught_known + tally.taught_unknown)

    @property
    def rate(self) -> float:
        """Images per second, decoding and encoding included."""
        return self.judged / max(time.perf_counter() - self.started, 1e-9)

    @property
    def exit_code(self) -> int:
        """1 where an input was skipped or the run was stopped."""
        return terminal.SKIPPED if self.skipped or self.is_stopped else terminal.DONE

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Save the state at the end; Ctrl-C or SIGTERM ends the run and keeps what was printed.

        Nobody else changes the state meanwhile.
        """
        with locked(self.state) if self.state and self.learn else nullcontext(), _interrupted_by_sigterm():
            if self.state and self.learn:
                check_unchanged(self.state, self.mark)
            try:
                yield
            except KeyboardInterrupt:
                self.is_stopped = True
            finally:
                self.save()

    def judge_all(
        self, batches: Iterable[B], judge: Callable[[B], JudgedBatch], *, unit: str, task: str, total: int | None
    ) -> None:
        """Judge every batch, or as many as come before Ctrl-C; print its verdicts, at the end where it is rejudged."""
        with terminal.progress(unit) as bar, self.until_stopped():
            shown = bar.add_task(task, total=total, rate="")
            for batch in batches:
                judged = judge(batch)
                if self.is_rejudged:
                    self.waiting.append(judged)
                else:
                    self._print(judged)
                self._calibrate_again()
                self.save_when_due()
                bar.update(shown, advance=len(judged.inputs), rate=f"{self.rate:,.1f} per second")
            self._calibrate_again(last=True)
        for one in self.waiting:
            self._print(one._replace(verdicts=one.verdicts and self.rejudge(one.verdicts)))

    def _calibrate_again(self, *, last: bool = False) -> None:
        if self.known_images and self.learn:
            self.known_images.follow(self.session, last=last)

    def _print(self, batch: JudgedBatch) -> None:
        """Print the verdicts on a batch, and what was skipped, in order of arrival."""
        records = self._records(batch)
        for key, reason in batch.inputs:
            if reason is None:
                self.output.verdict(next(records))
            else:
                if self.log:
                    self.log.skipped.append((key, reason))
                self.output.skipped(key, reason)

    def _records(self, batch: JudgedBatch) -> Iterator[Record]:
        if batch.verdicts is None:
            return iter(())
        keys = [key for key, reason in batch.inputs if reason is None]
        if self.log:  # else memory would grow with the stream
            self.log.add(keys, batch.verdicts, batch.jpegs)
        return batch.verdicts.records(keys)

    def judge(self, z: Float[Tensor, "T d"], keys: Sequence[str], is_new: Bool[Tensor, " T"] | None = None) -> Verdicts:
        """The verdicts on the next images, learning from those that are new unless `learn` is False."""
        if not self.learn or (is_new is not None and not is_new.any()):
            verdicts = self.session.score(z)
        elif is_new is None or is_new.all():
            verdicts = self.session.observe(z, keys)
        else:
            verdicts = self._judge_mixed(z, keys, is_new)
        self.learned_before += 0 if is_new is None else int((~is_new).sum())
        self.repeated += self._count_examples(z)
        self.judged += len(verdicts)
        self.known += int(verdicts.known.sum())
        for words in self.alarms.add(verdicts) if self.alarms else ():
            terminal.err.print(f"[bold red]alarm[/] at image {self.judged:,}: {words}")
        return verdicts

    def _count_examples(self, z: Float[Tensor, "T d"]) -> int:
        """How many images are examples as well."""
        labels = self.session.detector.labels
        found = [one.contains(z) for one in (labels.examples, labels.spared) if one is not None and z.ndim == 2]
        return int(torch.stack(found).any(0).sum()) if found else 0

    def _judge_mixed(self, z: Float[Tensor, "T d"], keys: Sequence[str], is_new: Bool[Tensor, " T"]) -> Verdicts:
        new, old = is_new.nonzero().flatten(), (~is_new).nonzero().flatten()
        parts = [self.session.observe(z[new], [keys[i] for i in new.tolist()]), self.session.score(z[old])]
        return Verdicts.joined(parts).select(torch.cat([new, old]).argsort())

    def rejudge(self, verdicts: Verdicts) -> Verdicts:
        """Verdicts of before under the threshold of now, and count those in place of the first."""
        final = self.session.rejudge(verdicts)
        self.known += int(final.known.sum()) - int(verdicts.known.sum())
        return final

    def save_when_due(self) -> None:
        """Save the state, unless saving would then have taken more than SAVING_SHARE of the time since the last."""
        if (began := time.perf_counter()) < self.next_save:
            return
        self.save()
        ended = time.perf_counter()
        self.next_save = ended + (ended - began) / SAVING_SHARE

    def save(self) -> None:
        """Save the state, if it has a file and may change."""
        if self.state and self.learn:
            self.session.save(self.state)

    def finish(self, report: Path | None, *, title: str, as_json: bool) -> typer.Exit:
        """Write the report, print the summary, and return what ends the command."""
        if report and self.log:
            stream_page.write(report, self.log, self.session, title=title)
        self.print_summary(as_json=as_json, report=report)
        return typer.Exit(self.exit_code)

    def print_summary(self, *, as_json: bool, report: Path | None = None) -> None:
        """Print in a few lines (counts, threshold, files), or as one JSON object, how the run went."""
        if self.repeated:
            terminal.warn(f"{self.repeated:,} of the images are among the examples; their verdicts say little")
        state, rate = self.state if self.learn else None, self.rate
        counts: dict[str, Any] = {
            "known": self.known,
            "unknown": self.judged - self.known,
            "skipped": self.skipped,
            "not_images": self.not_images,
            "learned_from": self.taught - self.taught_before,
            "learned_before": self.learned_before,
            "seen": int(self.session.snapshot.tally.seen),
        }
        if as_json:
            counts |= {"threshold": self.session.threshold, "recall_interval": self.session.recall_interval}
            counts |= {"stopped": self.is_stopped}
            counts |= {"alarm": self.alarms.shown()} if self.alarms else {}
            files = {name: path and str(path) for name, path in (("state", state), ("report", report))}
            terminal.emit({"summary": counts, "images_per_second": round(rate, 2), **files})
            return
        shown = [f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count or "known" in name]
        stopped = ["stopped: what is printed is kept"] if self.is_stopped else []
        lines = [
            [*shown, f"{rate:,.1f} images per second", *stopped],
            [threshold_in_words(self.session)] if counts["seen"] else [],
            [f"{what} {path}" for what, path in (("state saved to", state), ("report in", report)) if path],
        ]
        for parts in filter(None, lines):
            terminal.err.print(" · ".join(parts), markup=False)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which schedulers send before they kill, do what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def threshold_in_words(session: Session) -> str:
    """The threshold of a session and what its rule does; "~" marks one of which too few images were seen."""
    young = "~" if session.is_warming else ""
    return f"threshold {young}{session.threshold:z.2f} ({rule_in_words(session)})"


def rule_in_words(session: Session) -> str:
    """What the threshold rule of a session does."""
    rule = session.rule
    if isinstance(rule, Calibrated):
        ago = int(session.snapshot.tally.seen - session.snapshot.threshold.at)
        when = f", {ago:,} images ago" if ago else ""
        by = f"calibrated with {rule.images:,} known images{when}"
        by = f"set by {rule.images:,} examples" if isinstance(rule, ByExamples) else by
        return f"{by}, keeps at least {100 * rule.recall:g} % of known"
    if not isinstance(rule, Adaptive):
        return rule.name
    return f"adaptive, aims at {100 * rule.recall:g} % of known{promise_in_words(session, rule.recall)}"


def promise_in_words(session: Session, recall: float) -> str:
    """What share of the known images an adaptive threshold keeps, and whether known photos are needed."""
    interval = session.recall_interval
    if interval is None:
        return f"; a guess with {session.detector.name}: calibrate it (--calibrate)"
    settle = "; for a guarantee: --calibrate known/" if interval.low < recall - UNSURE else ""
    return f", likely keeps {100 * interval.low:.0f} to {100 * interval.high:.0f} %{settle}"
