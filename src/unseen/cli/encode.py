"""unseen encode: images to a folder of features."""

import time
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, NoReturn

import typer

from unseen.cli import options, terminal
from unseen.encoders import load_encoder
from unseen.encoders.device import named_precision
from unseen.errors import SettingError
from unseen.features import FeatureCache, encode_images
from unseen.features.encoding import DECODERS, check_decoder
from unseen.features.shards import FORMATS
from unseen.images import Skipped, find_images
from unseen.scale import cluster
from unseen.scale import encode as scaled


def encode(
    sources: Annotated[
        list[str],
        typer.Argument(help="Folders, globs, files, image lists, .tar, .parquet, .arrow, .lance, videos; URIs."),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder or URI for the features; goes on if it has some.")
    ],
    encoder: options.Encoder = "offline",
    device: options.Device = None,
    precision: options.Precision = None,
    runtime: options.Runtime = None,
    batch: options.Batch = 64,
    root: options.Root = None,
    stride: options.Stride = 1,
    decode: Annotated[
        str, typer.Option(help="pillow, or gpu: plain JPEG files on the GPU, much faster; vectors differ a little.")
    ] = DECODERS[0],
    form: Annotated[str, typer.Option("--format", help=f"Of the feature files: {' or '.join(FORMATS)}.")] = FORMATS[0],
    ray: options.Ray = None,
    shard: Annotated[int, typer.Option(min=1, help="With --ray: images per feature file.")] = scaled.SHARD,
    actors: Annotated[int | None, typer.Option(min=1, help="With --ray: models (default: per GPU or core).")] = None,
    gpus: Annotated[float, typer.Option(help="With --ray: share of a GPU for each model.", min=0.01, max=1.0)] = 1.0,
    as_json: options.AsJson = False,
) -> None:
    """Encode images to features on disk, so that scoring them takes seconds.

    Example: `unseen encode photos/ --encoder offline -o features/` and then `unseen score features/ --space ...`

    Stop it at any time: the same command goes on where it stopped, and encodes changed files again.
    `unseen encode s3://bucket/photos --ray auto -o s3://bucket/features` does the same on a Ray cluster.
    """
    if ray and ray.startswith("ray://"):
        raise SettingError(
            f"expected --ray auto or HOST:PORT, got {ray}: actors and their results were not tried through a client; "
            "start the command on a node of the cluster"
        )
    if ray and (runtime or decode != DECODERS[0]):
        raise SettingError(
            "expected no --decode and no --runtime with --ray, whose workers decode on CPUs and choose; leave them out"
        )
    if ray:
        job = scaled.EncodeJob(encoder, device, batch, actors, gpus, precision)
        with cluster.connect(ray) as joined:
            plan = scaled.plan(joined, sources, output, job, size=shard, form=form, root=root)
            batches = (EncodedBatch(done.encoded, done.skipped) for done in scaled.run(joined, plan, job))
            EncodeRun(as_json, plan.already).finish(batches, plan.total, plan.model.name, output)  # exits
    entries = find_images(sources, root=root, stride=stride)
    model = load_encoder(encoder, device=device, dtype=named_precision(precision), runtime=runtime)
    check_decoder(model, decode)
    cache = FeatureCache(output, model, form=form)
    already = sum(map(cache.has, entries)) if cache.done and isinstance(entries, Sized) else 0  # looks at each file
    total = len(entries) - already if isinstance(entries, Sized) else None
    encoded = encode_images(entries, model, cache, size=batch, decoder=decode)
    batches = (EncodedBatch(len(one), one.skipped) for one in encoded)
    EncodeRun(as_json, already).finish(batches, total, model.name, output)


class EncodedBatch(NamedTuple):
    """How many images were encoded in one step, and what was skipped."""

    encoded: int
    skipped: Sequence[Skipped]


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

    def finish(self, batches: Iterator[EncodedBatch], total: int | None, encoder: str, output: str) -> NoReturn:
        """Encode every batch, or as many as come before Ctrl-C, print the summary and exit."""
        try:
            self._encode_all(batches, total)
        except KeyboardInterrupt:
            terminal.err.print(f"stopped: what is done is in {output}, the same command goes on from here")
            self.stopped = True
        self._print_summary(encoder, output)
        raise typer.Exit(terminal.SKIPPED if self.skipped or self.stopped else terminal.DONE)

    def _encode_all(self, batches: Iterator[EncodedBatch], total: int | None) -> None:
        with terminal.progress("images") as bar:
            task = bar.add_task("encode", total=total, rate="")
            for batch in batches:
                self.encoded += batch.encoded
                self.skipped += len(batch.skipped)
                for row in batch.skipped:
                    self._print_skipped(row)
                bar.update(task, advance=batch.encoded + len(batch.skipped), rate=f"{self.rate:.1f} per second")

    def _print_skipped(self, row: Skipped) -> None:
        if self.as_json:
            terminal.emit({"key": row.path, "skipped": row.reason})
        else:
            terminal.err.print(f"{row.path}  skipped: {row.reason}", markup=False)

    def _print_summary(self, encoder: str, output: str) -> None:
        counts = {name: getattr(self, name) for name in ("encoded", "already", "skipped", "stopped")}
        if self.as_json:
            terminal.emit({"summary": counts, "images_per_second": round(self.rate, 2), "features": output})
            return
        terminal.err.print(
            f"encoded {self.encoded:,} · already there {self.already:,} · skipped {self.skipped:,} · "
            f"{self.rate:.1f} images per second · {encoder} · features in {output}"
        )
