"""unseen encode: images to a folder of features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import options, output
from unseen.errors import SettingError

if TYPE_CHECKING:
    from unseen.features.encoding import Encoded
    from unseen.scale.encode import ShardResult

    Batches = Iterator[Encoded] | Iterator[ShardResult]


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
    batch: Annotated[int, typer.Option(min=1, help="Images per step.", **options.MORE)] = 64,
    ray: options.Ray = None,
    shard: Annotated[
        int | None, typer.Option(min=1, help="With --ray: images per feature file (default: 256).", **options.MORE)
    ] = None,
    actors: Annotated[int | None, typer.Option(min=1, help="With --ray: models at once.", **options.MORE)] = None,
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

        job = scaled.EncodeJob(encoder, device, batch, actors)
        with cluster.connect(ray) as joined:
            plan = scaled.plan(joined, sources, folder, job, size=shard or scaled.NUMBERS.shard)
            run = EncodeRun(as_json, plan.already)
            raise run.finish(scaled.run(joined, plan, job), plan.total, plan.model.name, folder)

    from unseen import encoders
    from unseen.features import FeatureCache, encode_images
    from unseen.images import find_images

    entries = find_images(sources)
    model = encoders.load_encoder(encoder, device=device)
    cache = FeatureCache(folder, model)
    already = sum(map(cache.has, entries)) if cache.done and isinstance(entries, Sized) else 0  # looks at each file
    total = len(entries) - already if isinstance(entries, Sized) else None
    batches = encode_images(entries, model, cache, size=batch)
    raise EncodeRun(as_json, already).finish(batches, total, model.name, folder)


def _check_ray(ray: str) -> None:
    """Refuse what a cluster cannot do."""
    if ray.startswith("ray://"):
        raise SettingError(
            f"expected --ray auto or HOST:PORT, got {ray}: actors and their results were not tried through a client; "
            "start the command on a node of the cluster"
        )


@dataclass
class EncodeRun:
    """The counts of a run, and its output."""

    as_json: bool
    already: int = 0  # found in the folder
    encoded: int = 0
    skipped: int = 0
    stopped: bool = False
    started: float = field(default_factory=time.perf_counter)

    @property
    def rate(self) -> float:
        """Images per second, decoding included."""
        return self.encoded / max(time.perf_counter() - self.started, 1e-9)

    def finish(self, batches: Batches, total: int | None, encoder: str, folder: str) -> typer.Exit:
        """Encode every batch, or as many as come before Ctrl-C, print the summary and return what ends the command."""
        try:
            self._encode_all(batches, total)
        except KeyboardInterrupt:
            output.say(f"stopped: what is done is in {folder}, the same command goes on from here")
            self.stopped = True
        self._print_summary(encoder, folder)
        return typer.Exit(output.SKIPPED if self.skipped or self.stopped else output.DONE)

    def _encode_all(self, batches: Batches, total: int | None) -> None:
        with output.progress("images") as bar:
            task = bar.add_task("encode", total=total, rate="")
            for batch in batches:
                self.encoded += batch.encoded
                self.skipped += len(batch.skipped)
                for row in batch.skipped:
                    output.print_skipped(row.path, row.reason, as_json=self.as_json)
                bar.update(task, advance=batch.encoded + len(batch.skipped), rate=f"{self.rate:.1f} per second")

    def _print_summary(self, encoder: str, folder: str) -> None:
        counts = {name: getattr(self, name) for name in ("encoded", "already", "skipped", "stopped")}
        if self.as_json:
            output.emit({"summary": counts, "images_per_second": round(self.rate, 2), "features": folder})
            return
        output.say(
            f"encoded {self.encoded:,} · already there {self.already:,} · skipped {self.skipped:,} · "
            f"{self.rate:.1f} images per second · {encoder} · features in {folder}"
        )
