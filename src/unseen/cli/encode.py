"""unseen encode: images to a folder of features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import options, output
from unseen.errors import SettingError

if TYPE_CHECKING:
    from unseen.features.encoding import Encoded
    from unseen.scale.encode import ShardResult

    Batches = Iterator[Encoded] | Iterator[ShardResult]

BATCH = 64  # images per step


def encode(
    sources: Annotated[
        list[str],
        typer.Argument(help="Folders, globs, files, image lists, .tar, .parquet, .arrow, .lance, videos; URIs."),
    ],
    folder: Annotated[
        str, typer.Option("--output", "-o", help="Folder or URI for the features; goes on if it has some.")
    ],
    encoder: options.Encoder = "offline",
    as_json: options.AsJson = False,
    device: options.Device = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Images per step, with --ray per file (default: 64, with --ray 256).", **options.MORE),
    ] = None,
    ray: options.Ray = None,
) -> None:
    """Encode images to features on disk, so that scoring them takes seconds.

    Example: `unseen encode photos/ --encoder offline -o features/` and then `unseen score features/ --space ...`

    Stop it at any time: the same command goes on where it stopped, and encodes changed files again.
    `unseen encode s3://bucket/photos --ray auto -o s3://bucket/features` does the same on a Ray cluster.
    """
    if ray:
        _check_ray(ray)
        from unseen.scale import cluster
        from unseen.scale import encode as scaled

        job = scaled.EncodeJob(encoder, device)
        with cluster.connect(ray) as joined:
            plan = scaled.plan(joined, sources, folder, job, size=batch or scaled.NUMBERS.shard)
            counts = EncodeCounts(plan.already, plan.total)
            raise encode_all(scaled.run(joined, plan, job), counts, plan.model.name, folder, as_json=as_json)

    from unseen import encoders
    from unseen.features import FeatureCache, encode_images
    from unseen.images import find_images

    entries = find_images(sources)
    model = encoders.load_encoder(encoder, device=device)
    cache = FeatureCache(folder, model)
    already = sum(map(cache.has, entries)) if cache.done and isinstance(entries, Sized) else 0  # looks at each file
    total = len(entries) - already if isinstance(entries, Sized) else None
    batches = encode_images(entries, model, cache, size=batch or BATCH)
    raise encode_all(batches, EncodeCounts(already, total), model.name, folder, as_json=as_json)


def _check_ray(ray: str) -> None:
    """Refuse what a cluster cannot do."""
    if ray.startswith("ray://"):
        raise SettingError(
            f"expected --ray auto or HOST:PORT, got {ray}: actors and their results were not tried through a client; "
            "start the command on a node of the cluster"
        )


@dataclass
class EncodeCounts:
    """What was found in the folder, what is to be done, and what has been."""

    already: int
    total: int | None  # None where nobody knows
    encoded: int = 0
    skipped: int = 0
    stopped: bool = False


def encode_all(batches: Batches, counts: EncodeCounts, encoder: str, folder: str, *, as_json: bool) -> typer.Exit:
    """Encode every batch, or as many as come before Ctrl-C, print the summary and return what ends the command."""
    started, rate = time.perf_counter(), 0.0
    try:
        with output.progress("images") as bar:
            task = bar.add_task("encode", total=counts.total, rate="")
            for batch in batches:
                counts.encoded += batch.encoded
                counts.skipped += len(batch.skipped)
                for row in batch.skipped:
                    output.print_skipped(row.path, row.reason, as_json=as_json)
                rate = counts.encoded / (time.perf_counter() - started)  # decoding included
                bar.update(task, advance=batch.encoded + len(batch.skipped), rate=f"{rate:.1f} per second")
    except KeyboardInterrupt:
        output.say(f"stopped: what is done is in {folder}, the same command goes on from here")
        counts.stopped = True
    if as_json:
        found = {name: getattr(counts, name) for name in ("encoded", "already", "skipped", "stopped")}
        output.emit({"summary": found, "images_per_second": round(rate, 2), "features": folder})
    else:
        output.say(
            f"encoded {counts.encoded:,} · already there {counts.already:,} · skipped {counts.skipped:,} · "
            f"{rate:.1f} images per second · {encoder} · features in {folder}"
        )
    return typer.Exit(output.SKIPPED if counts.skipped or counts.stopped else output.DONE)
