"""unseen score streams: one session per value of a column, on one machine or on many."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from unseen import LabelSpace, keyed, partitions
from unseen.cli import options, output, terminal
from unseen.cli.session import SessionOptions
from unseen.features import Features, load_features
from unseen.scale import cluster
from unseen.scale import score as scaled
from unseen.storage.remote import check_bucket, location


def streams(
    features: options.Features,
    space: options.Space,
    key: Annotated[str, typer.Option(help="Column that says which stream a sample belongs to, such as `folder`.")],
    detector: options.Detector = None,
    state: Annotated[Path | None, typer.Option(help="Folder that keeps one state per stream.")] = None,
    verdicts: Annotated[
        str | None, typer.Option("-o", "--verdicts", help="Folder or URI for Parquet files by stream and day.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="With -o: column with the time of each sample; else today.")] = None,
    recall: options.Recall = None,
    threshold: options.Threshold = None,
    ray: options.Ray = None,
    learn: options.Learn = True,
    as_json: options.AsJson = False,
) -> None:
    """Score each stream of a column by itself; print the verdicts in the order of the input.

    Example: `unseen score streams table.parquet --space space.safetensors --key camera --ray auto`

    With --ray many streams are scored at once; the verdicts are the same, to the last bit. With -o they are written as
    Parquet files, for SQL, and not printed. States change when all verdicts are out: what failed can be run again.
    """
    spec = SessionOptions(detector, recall, threshold).spec(LabelSpace.load(space))
    job = keyed.StreamJob(spec, learn=learn, keep_state=learn and state is not None)
    samples = load_features(features)
    keys, days = samples.column(key), _days(samples, time)
    split = keyed.split(keys)
    if verdicts:
        check_bucket(location(verdicts))
    with keyed.staged_states(state) if state and learn else nullcontext() as keep:
        results = _run(job, split, samples, keyed.read_states(state, split) if state else {}, keep, ray)
        found = keyed.joined(split, results)
        if verdicts:
            partitions.write_partitions(location(verdicts), found, samples.keys, keys, days)
        else:
            out = output.choose(
                as_json=as_json, key=output.longest(samples.keys), name=output.longest(spec.labels.names)
            )
            for stream, record in zip(keys, found.records(samples.keys), strict=True):
                out.verdict({"key": record["key"], "stream": stream, **record})
    by_key = {result.key: result.summary for result in results}
    _print_summary([(stream.key, by_key[stream.key]) for stream in split], state, as_json=as_json)


def _days(samples: Features, time: str | None) -> Sequence[str]:
    if time is None:
        return [partitions.today()] * len(samples)
    return [partitions.day_of(moment) for moment in samples.column(time)]


def _run(
    job: keyed.StreamJob,
    streams: Sequence[keyed.KeyedStream],
    samples: Features,
    states: Mapping[str, bytes],
    keep: Callable[[keyed.StreamResult], None] | None,
    ray: str | None,
) -> list[keyed.StreamResult]:
    """The result of every stream, without its state, which is kept as soon as it is there."""
    results = []
    with terminal.progress("samples") as bar, _runner(ray) as run:
        task = bar.add_task(f"{len(streams):,} streams", total=len(samples), rate="")
        for result in run(job, streams, samples.z, states):
            if keep:
                keep(result)
            results.append(result._replace(state=b""))
            bar.update(task, advance=result.summary.samples, rate=result.key)
    return results


@contextmanager
def _runner(ray: str | None) -> Iterator[keyed.StreamRunner]:
    if ray is None:
        yield keyed.run_serially
        return
    with cluster.connect(ray) as joined:
        yield scaled.on_ray(joined)


def _print_summary(found: Sequence[tuple[str, keyed.KeyedSummary]], state: Path | None, *, as_json: bool) -> None:
    if as_json:
        for key, summary in found:
            terminal.emit({"stream": key, "summary": summary._asdict()})
        return
    total = {name: sum(getattr(one, name) for _, one in found) for name in ("samples", "known", "seen")}
    learned = sum(one.taught_known + one.taught_unknown for _, one in found)
    count = f"{len(found):,} stream{'s' * (len(found) != 1)}"
    terminal.err.print(
        f"{count} · known {total['known']:,} · unknown {total['samples'] - total['known']:,} · learned "
        f"from {learned:,} of {total['seen']:,} ever seen" + (f" · states in {state}" if state else "")
    )
