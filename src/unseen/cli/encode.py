"""unseen encode: images to a folder of features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, NoReturn

import typer

from unseen.cli import options, terminal
from unseen.encoders import load_encoder
from unseen.errors import SettingError
from unseen.features import FeatureCache, encode_images
from unseen.features.shards import FORMATS
from unseen.images import Skipped, find_images
from unseen.scale import cluster
from unseen.scale import encode as scaled


def encode(
    sources: Annotated[
        list[str], typer.Argument(help="Folders, globs, files, image lists, .tar, .parquet, videos; URIs.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder or URI for the features; goes on if it has some.")
    ],
    encoder: options.Encoder = "offline",
    device: options.Device = None,
    batch: options.Batch = 64,
    root: options.Root = None,
    stride: options.Stride = 1,
    form: Annotated[str, typer.Option("--format", help=f"Of the feature files: {' or '.join(FORMATS)}.")] = FORMATS[0],
    ray: options.Ray = None,
    shard: Annotated[int, typer.Option(min=1, help="With --ray: images per feature file.")] = scaled.SHARD,
    actors: Annotated[int | None, typer.Option(min=1, help="With --ray: models (default: per GPU or core).")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Turn images into features once, so that scoring them again takes seconds.

    Example: `unseen encode photos/ --encoder offline -o features/` and then `unseen score features/ --space ...`

    Stop it at any time: the same command goes on where it stopped, and encodes changed files again.
    `unseen encode s3://bucket/photos --ray auto -o s3://bucket/features` does the same on a Ray cluster.
    """
    if ray and ray.startswith("ray://"):
        raise SettingError(
            f"expected --ray auto or HOST:PORT, got {ray}: Ray Data does not run through a client; "
            "start the command on a node of the cluster"
        )
    if ray:
        job = scaled.EncodeJob(encoder, device, batch, actors)
        with cluster.connect(ray) as joined:
            plan = scaled.plan(joined, sources, output, job, size=shard, form=form, root=root)
            steps = (Step(done.encoded, done.skipped) for done in scaled.run(joined, plan, job))
            _finish(steps, Tally(already=plan.already), plan.total, plan.model.name, output, as_json=as_json)
        return
    entries = find_images(sources, root=root, stride=stride)
    model = load_encoder(encoder, device=device)
    cache = FeatureCache(output, model, form=form)
    tally = Tally(already=sum(map(cache.has, entries)) if isinstance(entries, Sized) else 0)
    total = len(entries) - tally.already if isinstance(entries, Sized) else None
    batches = encode_images(entries, model, cache, size=batch)
    _finish((Step(len(one), one.skipped) for one in batches), tally, total, model.name, output, as_json=as_json)


class Step(NamedTuple):
    """What was done since the step before."""

    encoded: int
    skipped: Sequence[Skipped]


def _finish(
    steps: Iterator[Step], tally: Tally, total: int | None, encoder: str, output: str, *, as_json: bool
) -> NoReturn:
    try:
        _run(steps, tally, total, as_json=as_json)
    except KeyboardInterrupt:
        terminal.err.print(f"stopped: what is done is in {output}, the same command goes on from here")
        tally.stopped = True
    _summary(tally, encoder, output, as_json=as_json)
    raise typer.Exit(terminal.SKIPPED if tally.skipped or tally.stopped else terminal.DONE)


@dataclass
class Tally:
    """What has happened so far."""

    encoded: int = 0
    skipped: int = 0
    already: int = 0
    stopped: bool = False
    started: float = field(default_factory=time.perf_counter)

    @property
    def rate(self) -> float:
        """Return images per second, decoding included."""
        return self.encoded / max(time.perf_counter() - self.started, 1e-9)


def _run(steps: Iterator[Step], tally: Tally, total: int | None, *, as_json: bool) -> None:
    with terminal.progress("images") as bar:
        task = bar.add_task("encode", total=total, rate="")
        for step in steps:
            tally.encoded += step.encoded
            tally.skipped += len(step.skipped)
            for row in step.skipped:
                _report(row, as_json=as_json)
            bar.update(task, advance=step.encoded + len(step.skipped), rate=f"{tally.rate:.1f} per second")


def _report(row: Skipped, *, as_json: bool) -> None:
    if as_json:
        terminal.emit({"key": row.path, "skipped": row.reason})
    else:
        terminal.err.print(f"{row.path}  skipped: {row.reason}", markup=False)


def _summary(tally: Tally, encoder: str, output: str, *, as_json: bool) -> None:
    if as_json:
        counts = {
            "encoded": tally.encoded,
            "already": tally.already,
            "skipped": tally.skipped,
            "stopped": tally.stopped,
        }
        terminal.emit({"summary": counts, "images_per_second": round(tally.rate, 2), "features": str(output)})
        return
    terminal.err.print(
        f"encoded {tally.encoded:,} · already there {tally.already:,} · skipped {tally.skipped:,} · "
        f"{tally.rate:.1f} images per second · {encoder} · features in {output}"
    )
