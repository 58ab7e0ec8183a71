"""unseen score: verdicts for features that were encoded before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace, Session, SessionSpec, keyed, threshold
from unseen import detectors as registry
from unseen.cli import resume, terminal
from unseen.errors import SettingError
from unseen.features import Features, load_features
from unseen.scale import cluster, merge
from unseen.scale import score as scaled
from unseen.verdicts import Verdict, Verdicts

BATCH = 2048  # samples between two checkpoints


def score(
    features: Annotated[
        str,
        typer.Argument(help="A folder from `unseen encode`, a .safetensors file with `features` [n, d], or .parquet."),
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
    key: Annotated[
        str | None,
        typer.Option(help="One stream per value of this column, such as `folder`; --state is then a folder."),
    ] = None,
    ray: Annotated[str | None, typer.Option(help=f"{cluster.HELP} Needs --key or --shards.")] = None,
    shards: Annotated[
        int, typer.Option(help="Observers that share one stream: faster, but an approximation; docs/scale.md.", min=1)
    ] = 1,
    merge_every: Annotated[int, typer.Option(help="With --shards: samples between two merges.", min=1)] = 1024,
    learn: Annotated[bool, typer.Option(help="--no-learn scores with the state as it is and changes nothing.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sample and a summary.")] = False,
) -> None:
    """Stream features through a detector and say of each which known name it is, or that it is unknown.

    Example: `unseen score features.safetensors --space space.safetensors --detector online --state state.safetensors`

    `--key camera` scores each camera as a stream of its own, `--ray auto` many of them at once, with the same result.
    `--shards 8 --ray auto` lets eight observers share one stream; their merged result is near the sequential one.
    """
    resume.usable(detector)
    rule = resume.rule(recall, cut)
    if ray and key is None and shards == 1:
        raise SettingError(
            "expected --key or --shards with --ray, got neither: one stream is one scan; name the column that splits "
            "it, or say how many observers may share it"
        )
    if shards > 1 and (key is not None or not learn):
        raise SettingError(
            "expected --shards for one stream that learns, got --key or --no-learn; leave --shards out: "
            "streams of a column run side by side by themselves, and nothing learned is nothing to merge"
        )
    if key is not None:
        chosen = rule or threshold.Adaptive()
        spec = SessionSpec(
            LabelSpace.load(space),
            detector or resume.DETECTOR,
            threshold=chosen.name,
            threshold_settings=chosen.settings,
        )
        job = keyed.StreamJob(spec, learn=learn, keep_state=learn and state is not None)
        _streams(load_features(features), key, job, state, ray, as_json=as_json)
        return
    session = resume.session(LabelSpace.load(space), detector, rule, state)
    if not learn and state is None:
        terminal.err.print("nothing learned yet: --no-learn without --state scores with the frozen text")
    samples = load_features(features)
    started, known = time.perf_counter(), 0
    # a call of observe ends with a merge
    batch = BATCH if shards == 1 else merge_every * max(1, BATCH // merge_every)
    with terminal.progress("samples") as bar, _shared(session, shards, merge_every, ray) as session:
        task = bar.add_task(session.detector.name, total=len(samples), rate="")
        try:
            for start in range(0, len(samples), batch):
                z = samples.z[start : start + batch]
                verdicts = session.observe(z) if learn else session.score(z)
                known += int(verdicts.known.sum())
                _print(samples.keys[start : start + batch], verdicts, as_json=as_json)
                if learn and state:
                    session.save(state)
                rate = (start + len(z)) / (time.perf_counter() - started)
                bar.update(task, advance=len(z), rate=f"{rate:,.0f} per second")
        finally:  # also on Ctrl-C: every printed verdict is in the state
            if learn and state:
                session.save(state)
    _summary(session, len(samples), known, state if learn else None, as_json=as_json)


def _streams(
    samples: Features, column: str, job: keyed.StreamJob, state: Path | None, ray: str | None, *, as_json: bool
) -> None:
    """Score every stream of a column by itself; print verdicts in the order of the input."""
    words = samples.column(column)
    streams = keyed.split(words)
    states = keyed.read_states(state, streams) if state else {}
    results = []
    with terminal.progress("samples") as bar, _way(ray) as way:
        task = bar.add_task(f"{len(streams):,} streams", total=len(samples), rate="")
        for result in way(job, streams, samples.z, states):
            if state and job.keep_state:
                keyed.write_state(state, result)
            results.append(result)
            bar.update(task, advance=result.summary.samples, rate=result.key)
    verdicts = keyed.joined(streams, results)
    for sample, word, verdict in zip(samples.keys, words, verdicts, strict=True):
        if as_json:
            terminal.emit({"key": sample, "stream": word, **verdict._asdict()})
        else:
            print(line(sample, verdict))
    _streams_summary(streams, {result.key: result.summary for result in results}, state, as_json=as_json)


@contextmanager
def _shared(session: Session, shards: int, every: int, ray: str | None) -> Iterator[Session]:
    """Yield a session whose stream several observers share, in this process or as actors."""
    alone = session.detector
    if shards == 1:
        yield session
        return
    if ray is None:
        yield session.at(session.snapshot, detector=merge.ShardedDetector.of(alone, shards=shards, every=every))
        return
    with cluster.connect(ray) as joined, merge.ray_observers(joined, alone, shards) as observers:
        shared = merge.ShardedDetector.of(alone, shards=shards, every=every, observers=observers)
        yield session.at(session.snapshot, detector=shared)


@contextmanager
def _way(ray: str | None) -> Iterator[keyed.StreamRunner]:
    if ray is None:
        yield keyed.run_serially
        return
    with cluster.connect(ray) as joined:
        yield scaled.on_ray(joined)


def _streams_summary(
    streams: Sequence[keyed.KeyedStream], found: dict[str, keyed.StreamSummary], state: Path | None, *, as_json: bool
) -> None:
    if as_json:
        for stream in streams:
            terminal.emit({"stream": stream.key, "summary": found[stream.key]._asdict()})
        return
    total = {name: sum(getattr(one, name) for one in found.values()) for name in ("samples", "known", "seen")}
    learned = sum(one.taught_known + one.taught_unknown for one in found.values())
    terminal.err.print(
        f"{len(found):,} streams · known {total['known']:,} · unknown {total['samples'] - total['known']:,} · learned "
        f"from {learned:,} of {total['seen']:,} ever seen" + (f" · states in {state}" if state else "")
    )


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
        "threshold": session.threshold,
    }
    if as_json:
        terminal.emit({"summary": summary, "state": str(state) if state else None})
        return
    terminal.err.print(
        f"known {known:,} · unknown {count - known:,} · learned from "
        f"{int(tally.taught_known + tally.taught_unknown):,} of {int(tally.seen):,} ever seen"
        f" · threshold {session.threshold:.2f} ({session.rule.name})" + (f" · state saved to {state}" if state else "")
    )
