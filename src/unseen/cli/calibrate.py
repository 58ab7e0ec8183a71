"""unseen calibrate: a threshold with a guarantee, from photos that are known to show the known names."""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.cli import label_space, options, terminal
from unseen.encoders import Encoder, load_encoder
from unseen.errors import DataError, EncoderError, StateError
from unseen.features import load_features, stream_images
from unseen.features.shards import MANIFEST
from unseen.images import Entry, find_images
from unseen.storage.locks import check_unchanged, content_mark, locked
from unseen.threshold import Adaptive, Calibrated, Calibration
from unseen.threshold.base import check_recall
from unseen.threshold.calibrated import check_images, fewest_images, recall_interval, suspects

RECALL = Adaptive.recall  # wanted, unless something else is asked for
BUYS = (20, 50, 200)  # numbers of images whose spread is printed
SHOWN = 5  # suspects that are named


def calibrate(
    known: Annotated[str, typer.Argument(help="Photos of your names: folder, folder per class, or features of them.")],
    state: Annotated[Path, typer.Option(help="State file of `unseen detect` or `score`; the threshold is kept in it.")],
    recall: options.Recall = None,
    space: Annotated[Path | None, typer.Option(help="Label space of the state, if it is not beside it.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Encoder of the label space, if it has another name here.")
    ] = None,
    device: options.Device = None,
    batch: options.Batch = 32,
    as_json: options.AsJson = False,
) -> None:
    """Set the threshold of a state by photos that show your names for certain. Nothing is learned.

    Example: `unseen calibrate known/ --state state.safetensors --recall 0.95`

    20 photos are enough to start. Calibrate again after the state has learned from many new images.
    """
    recall, mark = RECALL if recall is None else recall, content_mark(state)
    entries = find_known(known, recall)
    if not state.exists():
        raise StateError(f"expected a state to calibrate, got no file at {state}; make one with: unseen detect --state")
    labels = label_space.saved_space(space, state, has_names=True)
    assert labels is not None  # the state exists
    session = Session.load(state, labels)
    if entries is None:
        images = read_known(known, labels, recall)
    else:
        model = load_encoder(encoder or labels.encoder, device=device)
        label_space.check_space(labels, [], model)
        images = encode_known(entries, model, recall, batch=batch)
    warn_folders(images.keys, labels)
    found = images.calibrate(session)
    with locked(state):
        check_unchanged(state, mark)
        session.save(state)
    images.print_result(session, found, as_json=as_json, state=state)
    raise typer.Exit(terminal.SKIPPED if images.skipped else terminal.DONE)


@dataclass
class KnownImages:
    """Images that are known to be known, and how often the session has been calibrated with them."""

    z: Float[Tensor, "n d"]
    keys: Sequence[str]
    recall: float = RECALL
    skipped: Sequence[tuple[str, str]] = ()
    due: int = 0  # images of the stream at which to calibrate again

    def __post_init__(self) -> None:
        """Refuse too few, before anything is scored."""
        check_images(len(self.z), self.recall)

    def calibrate(self, session: Session) -> Calibration:
        """Calibrate a session; warn about images that look unknown, and about examples."""
        self.warn_suspects(session)
        self._warn_examples(session)
        return session.calibrate(self.z, recall=self.recall)

    def warn_suspects(self, session: Session) -> None:
        """Warn about images that look unknown."""
        margins, threshold = session.score(self.z).margin, stream_threshold(session)
        self._warn(suspects(margins, threshold=threshold, recall=self.recall).tolist(), margins.tolist(), threshold)

    def _warn_examples(self, session: Session) -> None:
        """Warn about images that have moved their names: new images have lower margins than these."""
        examples = session.detector.labels.examples
        if examples is not None and (count := int(examples.contains(self.z).sum())):
            terminal.warn(
                f"{count} of {len(self.keys)} calibration images are among the examples, towards which names were "
                "moved: fewer new images are kept than promised; calibrate with others"
            )

    def follow(self, session: Session, *, last: bool = False) -> None:
        """Calibrate again whenever the stream has grown by an eighth: margins move while a detector learns."""
        seen = int(session.snapshot.tally.seen)
        if seen >= self.due or last:
            session.calibrate(self.z, recall=self.recall)
            self.due = seen + max(1, seen // 8)

    def _warn(self, found: Sequence[int], margins: Sequence[float], threshold: float) -> None:
        if not found:
            return
        lowest = ", ".join(f"{self.keys[i]} ({margins[i]:.2f})" for i in found[:SHOWN])
        terminal.warn(
            f"{len(found)} of {len(self.keys)} calibration images look unknown (threshold of the stream: "
            f"{threshold:.2f}): the lowest are {lowest}; leave out what shows none of your names"
        )

    def print_result(self, session: Session, found: Calibration, *, as_json: bool, state: Path | None = None) -> None:
        """Print what the calibration promises."""
        at = int(session.snapshot.threshold.at)
        if as_json:
            row = {**found._asdict(), "conformal": found.threshold, "threshold": session.threshold, "at": at}
            terminal.emit({"calibration": row, "skipped": len(self.skipped), "state": state and str(state)})
            return
        for line in calibration_lines(found, session.threshold, at):
            terminal.err.print(line, markup=False)


def calibration_lines(found: Calibration, threshold: float, at: int) -> list[str]:
    """What a calibration promises and what more images would buy.

    >>> print(calibration_lines(Calibration(20, 0.95, 1.5, 0.861, 0.997), 1.2, 0)[1])
    a new known image is kept with probability at least 95 %; in nine of ten calibrations with 20 images the share of \
all known images kept lies between 86.1 and 99.7 %
    """
    lowered = f", lowered from {found.threshold:.2f} by the stream" if threshold < found.threshold else ""
    buys = {n: recall_interval(n, found.recall) for n in BUYS if n >= fewest_images(found.recall)}
    return [
        f"calibrated with {found.images:,} known images at image {at:,} of the stream: "
        f"threshold {threshold:.2f}{lowered}",
        f"a new known image is kept with probability at least {100 * found.recall:g} %; in nine of ten calibrations "
        f"with {found.images:,} images the share of all known images kept lies between "
        f"{100 * found.low:.1f} and {100 * found.high:.1f} %",
        *(f"  {n:>4} images: {100 * low:.1f} to {100 * high:.1f} %" for n, (low, high) in buys.items()),
    ]


def find_known(source: str, recall: float) -> Iterable[Entry] | None:
    """The images of a source, None where it holds features; refuse too few before anything is encoded."""
    check_recall(recall)
    if is_features(source):
        return None
    try:
        entries = find_images(source)
    except DataError as error:
        raise DataError(f"{error}; --calibrate and `unseen calibrate` need photos of your names") from error
    if isinstance(entries, Sized):
        check_images(len(entries), recall)
    return entries


def is_features(source: str) -> bool:
    """Whether a source holds features: a folder of `unseen encode`, a .safetensors or a .parquet file."""
    path = Path(source)
    return path.suffix in (".safetensors", ".parquet") or (path / MANIFEST).is_file()


def read_known(source: str, labels: LabelSpace, recall: float) -> KnownImages:
    """Features of known images; refuse those of another encoder."""
    features = load_features(source)
    made_by, own = features.encoder, labels.manifest.get("encoder_fingerprint")
    if own and made_by not in ("", features.metadata.get("encoder"), own):
        raise EncoderError(
            f"expected features of the encoder of this label space, {labels.encoder} ({own[:8]}), got those of another "
            f"({made_by[:8]}) in {source}; encode the images with --encoder {labels.encoder}"
        )
    if features.z.shape[1] != labels.dim:
        raise EncoderError(
            f"expected features of width {labels.dim} as of this label space, got {features.z.shape[1]} in {source}; "
            f"encode the images with --encoder {labels.encoder}"
        )
    return KnownImages(features.z, features.keys, recall)


def encode_known(entries: Iterable[Entry], model: Encoder, recall: float, *, batch: int = 32) -> KnownImages:
    """Known images with their features; what cannot be read is skipped with its reason."""
    parts, keys, skipped = [], [], []
    with terminal.progress("images") as bar:
        task = bar.add_task("calibrate", total=len(entries) if isinstance(entries, Sized) else None, rate="")
        for one, z in stream_images(entries, model, size=batch):
            parts.append(z)
            keys += [image.path for image in one]
            skipped += [(row.path, row.reason) for row in one.skipped]
            bar.update(task, advance=len(one.rows))
    for key, reason in skipped:
        terminal.err.print(f"{key}  skipped: {reason}", markup=False)
    return KnownImages(torch.cat(parts), keys, recall, skipped)


def warn_folders(keys: Iterable[str], labels: LabelSpace) -> None:
    """Warn where the folders of some images carry known names and those of others do not."""
    found = {Path(key).parent.name for key in keys}
    known = {name.lower() for name in labels.names}
    foreign = sorted(name for name in found if name.lower().replace("_", " ") not in known)
    if foreign and len(foreign) < len(found):
        terminal.warn(f"these folders carry none of the known names: {', '.join(foreign[:SHOWN])}; leave them out")


def stream_threshold(session: Session) -> float:
    """The threshold that the stream alone gives."""
    rule, state = session.rule, session.snapshot.threshold
    return rule.inner.threshold_of(state.stream) if isinstance(rule, Calibrated) else session.threshold
