"""Photos whose names a person knows: examples move the names, calibration photos set the threshold.

Both are checked before anything is encoded. Loads torch: commands import it when they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.cli import output, spaces
from unseen.encoders import Encoder
from unseen.errors import DataError, EncoderError, SettingError
from unseen.features import Features, load_features, stream_images
from unseen.features.shards import MANIFEST
from unseen.images import Entry, find_images
from unseen.labels import Examples, with_examples
from unseen.labels.examples import comparable_name, unknown_classes_message
from unseen.labels.residuals import FEWEST
from unseen.threshold import Adaptive, ByExamples, Calibrated, Calibration
from unseen.threshold.base import check_recall
from unseen.threshold.calibrated import check_images, fewest_images, recall_interval, suspects

RECALL = Adaptive.recall  # wanted, unless something else is asked for
BUYS = (20, 50, 200)  # numbers of images whose spread is printed
SHOWN = 5  # suspects and names that a warning lists


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
        examples = session.detector.labels.examples
        if examples is not None and (count := int(examples.contains(self.z).sum())):
            output.warn(
                f"{count} of {len(self.keys)} calibration images are among the examples, towards which names were "
                "moved: fewer new images are kept than promised; calibrate with others"
            )
        return session.calibrate(self.z, recall=self.recall)

    def warn_suspects(self, session: Session) -> None:
        """Warn about images that look unknown by the threshold that the stream alone gives."""
        rule, state = session.rule, session.snapshot.threshold
        threshold = rule.inner.threshold_of(state.stream) if isinstance(rule, Calibrated) else session.threshold
        margins = session.score(self.z).margin
        if not (found := suspects(margins, threshold=threshold, recall=self.recall).tolist()):
            return
        lowest = ", ".join(f"{self.keys[i]} ({float(margins[i]):.2f})" for i in found[:SHOWN])
        output.warn(
            f"{len(found)} of {len(self.keys)} calibration images look unknown (threshold of the stream: "
            f"{threshold:.2f}): the lowest are {lowest}; leave out what shows none of your names"
        )

    def follow(self, session: Session, *, last: bool = False) -> None:
        """Calibrate again whenever the stream has grown by an eighth: margins move while a detector learns."""
        seen = int(session.snapshot.tally.seen)
        if seen >= self.due or last:
            session.calibrate(self.z, recall=self.recall)
            self.due = seen + max(1, seen // 8)

    def print_result(self, session: Session, found: Calibration, *, as_json: bool, state: Path | None = None) -> None:
        """Print what the calibration promises."""
        at = int(session.snapshot.threshold.at)
        if as_json:
            row = {**found._asdict(), "conformal": found.threshold, "threshold": session.threshold, "at": at}
            output.emit({"calibration": row, "skipped": len(self.skipped), "state": state and str(state)})
            return
        for line in calibration_lines(found, session.threshold, at):
            output.say(line)


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


@dataclass(frozen=True)
class KnownSource:
    """Where known images come from: photos, or features of some, which are checked when they are read."""

    source: str
    recall: float
    entries: Iterable[Entry] | None  # None where the source holds features

    @classmethod
    def find(cls, source: str, recall: float | None) -> KnownSource:
        """The images of a source; refuse too few before anything is encoded."""
        recall = RECALL if recall is None else recall
        check_recall(recall)
        if is_features(source):
            return cls(source, recall, None)
        try:
            entries = find_images(source)
        except DataError as error:
            raise DataError(f"{error}; --calibrate and `unseen calibrate` need photos of your names") from error
        if isinstance(entries, Sized):
            check_images(len(entries), recall)
        return cls(source, recall, entries)

    @classmethod
    def features(cls, source: str, recall: float | None) -> KnownSource:
        """Features of known images, where there is no encoder to read photos."""
        if not is_features(source):
            raise SettingError(
                f"expected features of known images, got {source}; make them with: unseen encode {source}"
            )
        return cls.find(source, recall)

    def read(self, space: LabelSpace, model: Encoder | None = None) -> KnownImages:
        """The images with their features; the encoder is loaded where none is given and one is needed."""
        is_encoded = self.entries is None
        found = self._read_features(space) if is_encoded else self._encoded(model or spaces.encoder_of(space))
        folders = {Path(key).parent.name for key in found.keys}
        known = {name.lower() for name in space.names}
        foreign = sorted(name for name in folders if name.lower().replace("_", " ") not in known)
        if foreign and len(foreign) < len(folders):
            output.warn(f"these folders carry none of the known names: {', '.join(foreign[:SHOWN])}; leave them out")
        return found

    def _read_features(self, space: LabelSpace) -> KnownImages:
        """Features of known images; refuse those of another encoder."""
        features = load_features(self.source)
        made_by, own = features.encoder, space.manifest.get("encoder_fingerprint")
        remedy = f"encode the images with --encoder {space.encoder}"
        if own and made_by not in ("", features.metadata.get("encoder"), own):
            raise EncoderError(
                f"expected features of the encoder of this label space, {space.encoder} ({own[:8]}), got those of "
                f"another ({made_by[:8]}) in {self.source}; {remedy}"
            )
        if features.z.shape[1] != space.dim:
            raise EncoderError(
                f"expected features of width {space.dim} as of this label space, got {features.z.shape[1]} in "
                f"{self.source}; {remedy}"
            )
        return KnownImages(features.z, features.keys, self.recall)

    def _encoded(self, model: Encoder) -> KnownImages:
        """Known images with their features; what cannot be read is skipped with its reason."""
        entries, parts, keys, skipped = self.entries or (), [], [], []
        with output.progress("images") as bar:
            task = bar.add_task("calibrate", total=len(entries) if isinstance(entries, Sized) else None, rate="")
            for one, z in stream_images(entries, model):
                parts.append(z)
                keys += [image.path for image in one]
                skipped += [(row.path, row.reason) for row in one.skipped]
                bar.update(task, advance=len(one.rows))
        for key, reason in skipped:
            output.print_skipped(key, reason)
        return KnownImages(torch.cat(parts), keys, self.recall, skipped)


def is_features(source: str) -> bool:
    """Whether a source holds features: a folder of `unseen encode`, a .safetensors or a .parquet file."""
    path = Path(source)
    return path.suffix in (".safetensors", ".parquet") or (path / MANIFEST).is_file()


@dataclass
class ExampleImages:
    """Images that a user has labelled, and what became of them."""

    source: str
    folders: Mapping[str, Sequence[Entry]]  # class -> its images; empty lists where features were given
    features: Features | None = None
    skipped: Sequence[tuple[str, str]] = ()

    @classmethod
    def find(cls, source: str, *, saved: LabelSpace | None, state: Path | None) -> ExampleImages:
        """The examples of a source; refuse them where a state has begun without."""
        if state and state.exists():
            raise SettingError(
                f"expected --examples for a new state, got {state}, which has begun; leave --examples out (the state "
                "keeps those it began with), or start another --state file"
            )
        if saved and saved.examples:
            raise SettingError(f"expected a label space without examples, got {len(saved.examples)}; leave out one")
        if not is_features(source):
            return cls(source, class_folders(source))
        features = load_features(source).labelled
        return cls(source, {name.replace("_", " "): () for name in features.classes}, features)

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse a folder that is none of the names."""
        known = {comparable_name(name) for name in names}
        if foreign := [name for name in self.folders if comparable_name(name) not in known]:
            raise DataError(unknown_classes_message(foreign, tuple(names), self.source))

    def teach(self, space: LabelSpace, model: Encoder, *, recall: float | None) -> LabelSpace:
        """The label space that the examples have moved; of enough, some are spared for the threshold.

        `recall` is None where something else sets the threshold.
        """
        found = self.encode(space, model)
        examples = found.without_copies()
        if len(examples) < len(found):
            output.warn(
                f"{len(found) - len(examples):,} of the examples are copies, which count once, or stand under several "
                "names, which counts for none"
            )
        if not len(examples):
            raise DataError(
                f"expected examples that show one name each, got every image of {self.source} under several names; "
                "keep each in the folder of its class alone"
            )
        moved = with_examples(space, examples, spare=0 if recall is None else fewest_images(recall))
        used = sum(len(one) for one in (moved.examples, moved.spared) if one)
        if moved.examples and used < len(examples):
            output.warn(
                f"{len(examples) - used:,} examples are not used, because their names have far more "
                "than the others; add examples of the others"
            )
        self.print_result(moved)
        return moved

    def encode(self, space: LabelSpace, model: Encoder) -> Examples:
        """The features of the examples with the index of the name of each."""
        if self.features is not None:
            found = Examples.of(self.features, space.names)
            found.check(space)
            return found
        place = {comparable_name(name): index for index, name in enumerate(space.names)}
        labelled = [
            (entry, place[comparable_name(name)]) for name, entries in self.folders.items() for entry in entries
        ]
        label = {entry.path: index for entry, index in labelled}
        parts, keys, skipped = [], [], []
        for batch, z in stream_images([entry for entry, _ in labelled], model):
            parts.append(z.cpu())
            keys += [image.path for image in batch]
            skipped += [(row.path, row.reason) for row in batch.skipped]
        self.skipped = skipped
        if not keys:
            raise DataError(f"expected readable examples in {self.source}, got {len(skipped)} that are not; see each")
        return Examples(torch.cat(parts), torch.tensor([label[key] for key in keys]), tuple(keys), model.fingerprint)

    def print_result(self, space: LabelSpace) -> None:
        """Print what the examples changed, and what could not be read."""
        for key, reason in self.skipped:
            output.print_skipped(key, reason)
        examples = space.examples
        if examples is None:
            output.warn(
                f"{space.manifest['examples_refused']} examples are not used: they agree neither with their names nor "
                "with each other more than by chance; check that each folder shows what it is called"
            )
            return
        counts = examples.counts(len(space.names))
        spared = f" + {len(space.spared)} for the threshold" if space.spared else ""
        names = f"{int((counts > 0).sum()):,} of {len(space.names):,} names"
        count = f"{len(examples):,} example{'s' * (len(examples) > 1)}"
        output.say(f"{count} of {names}{spared} · {left_out_text(space)}")
        if without := [name for name, count in zip(space.names, counts.tolist(), strict=True) if not count]:
            shown = ", ".join(without[:SHOWN]) + (" ..." if len(without) > SHOWN else "")
            have, they = ("name has", "it gains") if len(without) == 1 else ("names have", "they gain")
            output.warn(f"{len(without):,} {have} no examples ({shown}): {they} less; add some")
        if len(examples) < FEWEST:
            output.warn(
                f"fewer than {FEWEST} examples are too few to test whether they help: they move no name; add some"
            )


def names_of(
    path: Path | None, given: list[str] | None, examples: ExampleImages | None, saved: LabelSpace | None
) -> list[str]:
    """The names that are given, else those of the folders of examples, else none where a space is saved."""
    if path or given:
        names = spaces.names_from_options(path, given)
    elif saved:
        names = []
    else:
        names = list(examples.folders) if examples else spaces.names_from_options(None, None)
    if examples:
        examples.check_names(names or saved.names if saved else names)
    return names


def warn_spared(session: Session, recall: float) -> None:
    """Warn about examples that look unknown, where they set the threshold."""
    spared = session.detector.labels.spared
    if spared and isinstance(session.rule, ByExamples):
        KnownImages(spared.z, spared.keys, recall).warn_suspects(session)


def left_out_text(space: LabelSpace) -> str:
    """What leaving examples out has shown."""
    before, _, after = space.manifest["examples_loss"].partition(" -> ")
    if space.manifest["examples_penalty"] == "inf":
        return "names stay where their text is: no sure gain on examples that were left out"
    return f"they move the names towards their images (loss on examples that were left out: {before}, now {after} nats)"


def class_folders(source: str) -> dict[str, list[Entry]]:
    """The images of each folder in `source`, by the name of the folder; a folder may have none."""
    root = Path(source)
    if not root.is_dir():
        raise DataError(f"expected a folder with one folder of examples per class, got none at {source}; make one")
    names = sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
    folders: dict[str, list[Entry]] = {name: [] for name in names}
    for entry in find_images(source):
        first, *rest = Path(entry.path).relative_to(root).parts
        if not rest:
            raise DataError(f"expected examples in a folder per class, got {entry.path} beside them; move it into one")
        if first in folders:  # else it is hidden
            folders[first].append(replace(entry, label=first))
    called: dict[str, str] = {}
    for name in names:
        if (other := called.setdefault(comparable_name(name), name)) != name:
            raise DataError(f"expected one folder per class in {source}, got {other!r} and {name!r}; join them")
    return {name.replace("_", " "): entries for name, entries in folders.items()}
