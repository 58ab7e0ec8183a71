"""unseen score --by: one session per value of a column, on one machine or on many.

Loads torch: the command imports it when it runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from unseen import keyed
from unseen.cli import output
from unseen.features import Features, load_features
from unseen.scale import cluster
from unseen.scale import score as scaled


def score(
    job: keyed.StreamJob,
    features: str,
    by: str,
    *,
    state: Path | None,
    form: output.Format,
    ray: str | None,
    as_json: bool,
) -> None:
    """Score each stream by itself; write the verdicts in the order of the input.

    `state` is a folder. States change when all verdicts are out: what failed can be run again.
    """
    samples = load_features(features)
    keys = samples.column(by)
    split = keyed.split(keys)
    with keyed.staged_states(state) if state and job.keep_state else nullcontext() as keep:
        states = keyed.read_states(state, split) if state else {}
        results = _run(job, split, samples, states, keep, ray)
        found = keyed.joined(split, results)
        columns = {"key": output.longest(samples.keys), "name": output.longest(job.spec.labels.names)}
        with form.lines(**columns) as lines:
            for stream, record in zip(keys, found.records(samples.keys), strict=True):
                lines.verdict({"key": record["key"], "stream": stream, **record})
    by_key = {result.key: result.summary for result in results}
    _print_summary([(stream.key, by_key[stream.key]) for stream in split], state, as_json=as_json)


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
    with output.progress("samples") as bar, _runner(ray) as run:
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
            output.emit({"stream": key, "summary": summary._asdict()})
        return
    total = {name: sum(getattr(one, name) for _, one in found) for name in ("samples", "known", "doubtful", "seen")}
    learned = sum(one.taught_known + one.taught_unknown for _, one in found)
    count = f"{len(found):,} stream{'s' * (len(found) != 1)}"
    output.say(
        f"{count} · known {total['known']:,} · doubtful {total['doubtful']:,} · "
        f"unknown {total['samples'] - total['known'] - total['doubtful']:,} · learned "
        f"from {learned:,} of {total['seen']:,} ever seen" + (f" · states in {state}" if state else "")
    )
