"""Examples: photos of each class that a person gives before a stream starts, which move names and tell the threshold.

They are checked before anything is encoded. Loads torch: commands import it when they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from unseen import LabelSpace, Session
from unseen.cli import output
from unseen.encoders import Encoder
from unseen.errors import DataError, SettingError
from unseen.features import Features, load_features, stream_images
from unseen.features.shards import MANIFEST
from unseen.images import Entry, find_images
from unseen.labels import Examples, with_examples
from unseen.labels.examples import comparable_name, unknown_classes_message
from unseen.labels.residuals import FEWEST
from unseen.threshold.calibrated import odd_images

SHOWN = 5  # photos and names that a warning lists


def is_features(source: str) -> bool:
    """Whether a source holds features: a folder of `unseen encode`, a .safetensors or a .parquet file."""
    path = Path(source)
    return path.suffix in (".safetensors", ".parquet") or (path / MANIFEST).is_file()


def encode_photos(entries: Sequence[Entry], model: Encoder, source: str) -> tuple[Float[Tensor, "n d"], list[str], int]:
    """The vectors and keys of photos, and how many cannot be read, each of which is printed with its reason."""
    parts, keys, skipped = [], list[str](), 0
    with output.progress("images") as bar:
        task = bar.add_task("known photos", total=len(entries), rate="")
        for batch, z in stream_images(entries, model):
            parts.append(z.cpu())
            keys += [image.path for image in batch]
            skipped += len(batch.skipped)
            for row in batch.skipped:
                output.print_skipped(row.path, row.reason)
            bar.update(task, advance=len(batch.rows))
    if not keys:
        raise DataError(f"expected photos that can be read in {source}, got {skipped} that are not; see each")
    return torch.cat(parts), keys, skipped


@dataclass
class ExampleImages:
    """Images that a user has labelled, and what became of them."""

    source: str
    folders: Mapping[str, Sequence[Entry]]  # class -> its images; empty lists where features were given
    features: Features | None = None
    skipped: int = 0  # that could not be read

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

    def teach(self, space: LabelSpace, model: Encoder) -> LabelSpace:
        """The label space that the examples have moved; of names with several, some are spared for the threshold."""
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
        moved = with_examples(space, examples)
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
        z, keys, self.skipped = encode_photos([entry for entry, _ in labelled], model, self.source)
        return Examples(z, torch.tensor([label[key] for key in keys]), tuple(keys), model.fingerprint)

    def print_result(self, space: LabelSpace) -> None:
        """Print what the examples changed."""
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


def warn_odd(keys: Sequence[str]) -> None:
    """Name the photos that a threshold leaves out."""
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    looks, its, it = ("looks", "its", "it") if len(keys) == 1 else ("look", "their", "them")
    if keys:
        shown = ", ".join(keys[:SHOWN]) + more
        output.warn(f"{shown} {looks} unlike {its} class: left out of the threshold; calibrate --keep-odd keeps {it}")


def without_odd(session: Session) -> LabelSpace | None:
    """The label space without spared examples that look unlike their class, which are named; None where none does."""
    labels = session.detector.labels
    if labels.spared is None or not session.detector.in_nats:
        return None
    odd = odd_images(session.score(labels.spared.z.to(labels.id_anchors)).margin)
    if not len(odd):
        return None
    warn_odd([labels.spared.keys[row] if labels.spared.keys else f"example {row}" for row in odd.tolist()])
    kept = torch.ones(len(labels.spared), dtype=torch.bool).index_fill(0, odd, False)
    return replace(labels, spared=labels.spared[kept] if bool(kept.any()) else None)


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
