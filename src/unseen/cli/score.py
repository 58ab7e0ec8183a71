"""unseen score: verdicts for features that were encoded before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace, Session
from unseen import detectors as registry
from unseen.cli import resume, terminal
from unseen.encode.cache import load_features
from unseen.session import Verdict, Verdicts

BATCH = 2048  # samples between two checkpoints


def score(
    features: Annotated[
        Path, typer.Argument(help="A folder from `unseen encode`, or a .safetensors file with `features` [n, d].")
    ],
    space: Annotated[Path, typer.Option(help="Label space file, as `unseen mine` writes it.")],
    detector: Annotated[
        str | None, typer.Option(help=f"One of: {', '.join(sorted(registry.REGISTRY))} (default: {resume.DETECTOR}).")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Go on from this file if it is there, and keep the state in it.")
    ] = None,
    recall: Annotated[
        float | None, typer.Option(help="Share of known images the adaptive line should accept (default: 0.95).")
    ] = None,
    cut: Annotated[
        float | None, typer.Option(help="Use this fixed score as the line instead of an adaptive one.")
    ] = None,
    learn: Annotated[bool, typer.Option(help="--no-learn scores with the state as it is and changes nothing.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sample and a summary.")] = False,
) -> None:
    """Stream features through a detector and say of each which known name it is, or that it is unknown.

    Example: `unseen score features.safetensors --space space.safetensors --detector online --state state.safetensors`
    """
    resume.usable(detector)
    session = resume.session(LabelSpace.load(space), detector, resume.rule(recall, cut), state)
    if not learn and state is None:
        terminal.err.print("nothing learned yet: --no-learn without --state scores with the frozen text")
    samples = load_features(features)
    started, known = time.perf_counter(), 0
    with terminal.progress("samples") as bar:
        task = bar.add_task(session.detector.name, total=len(samples), rate="")
        try:
            for start in range(0, len(samples), BATCH):
                z = samples.z[start : start + BATCH]
                verdicts = session.observe(z) if learn else session.score(z)
                known += int(verdicts.known.sum())
                _print(samples.keys[start : start + BATCH], verdicts, as_json=as_json)
                if learn and state:
                    session.save(state)
                rate = (start + len(z)) / (time.perf_counter() - started)
                bar.update(task, advance=len(z), rate=f"{rate:,.0f} per second")
        finally:  # also on Ctrl-C: every printed verdict is in the state
            if learn and state:
                session.save(state)
    _summary(session, len(samples), known, state if learn else None, as_json=as_json)


def _print(keys: Sequence[str], verdicts: Verdicts, *, as_json: bool) -> None:
    for key, verdict in zip(keys, verdicts, strict=True):
        if as_json:
            terminal.emit({"key": key, **verdict._asdict()})
        else:
            print(line(key, verdict))


def line(what: str, verdict: Verdict, *, width: int = 24) -> str:
    """Return one verdict as one line of text."""
    word = "known" if verdict.known else "unknown"
    note = "  (warming up)" if verdict.warming else ""
    return f"{what:<{width}} {verdict.name or '—':<28} {word:<8} {verdict.confidence:.2f}{note}"


def _summary(session: Session, count: int, known: int, state: Path | None, *, as_json: bool) -> None:
    tally = session.snapshot.tally
    summary = {
        "known": known,
        "unknown": count - known,
        "taught_known": int(tally.taught_known),
        "taught_unknown": int(tally.taught_unknown),
        "seen": int(tally.seen),
        "cut": session.line,
    }
    if as_json:
        terminal.emit({"summary": summary, "state": str(state) if state else None})
        return
    terminal.err.print(
        f"known {known:,} · unknown {count - known:,} · learned from "
        f"{int(tally.taught_known + tally.taught_unknown):,} of {int(tally.seen):,} ever seen"
        f" · line at {session.line:.2f} ({session.threshold.name})" + (f" · state saved to {state}" if state else "")
    )
