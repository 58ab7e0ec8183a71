"""Suites over images in OpenOOD's layout: what is there, what is missing, and the features of what is there.

A set is found by the first of its `lists` whose images are there (one `path label` a line, paths relative to `under`;
several lists in brackets count as one), or else by the first of its `folders`. The class of a known image is its label
in a list, or the name of its folder. Features are kept per encoder and place, so that every suite and every later run
reads them instead of the images.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from unseen.encoders import Encoder
from unseen.encoders.base import PatchEncoder
from unseen.errors import DataError, EncoderError, import_extra
from unseen.features import FeatureCache, encode_images, load_features
from unseen.images import Entry, Image, find_images
from unseen.images.entry import MISSING
from unseen.labels import LabelSpace
from unseen.storage.files import cache_dir
from unseen_bench.suites.base import KNOWN, LabelledSamples, learned_file, read

NOISE_IMAGES = 300
WORDNET_ID = re.compile(r"n\d{8}")

Progress = Callable[[str, int, int], None]  # set, images done, images in all


class FoundSet(NamedTuple):
    """One set of a suite as found on disk."""

    set: str
    where: tuple[Path, ...]  # the lists or the folder it was found by; none where it was not
    images: int
    expected: int | None
    absent: int  # listed, but not there
    unclean: bool
    looked_for: str  # where it is expected, in words

    @property
    def is_complete(self) -> bool:
        """Whether every expected image is there."""
        return self.images > 0 and not self.absent and self.expected in (None, self.images)


class ClassNames(NamedTuple):
    """Class names with what stands for each in folder names: a WordNet id, or its number."""

    names: tuple[str, ...]
    keys: tuple[str, ...]

    def only_occurring(self, present: set[str]) -> ClassNames:
        """The names of the classes that occur."""
        kept = [(name, key) for name, key in zip(*self, strict=True) if key in present]
        return ClassNames(tuple(name for name, _ in kept), tuple(key for _, key in kept))


def inventory(name: str, root: str | Path) -> list[FoundSet]:
    """What of a suite lies under `root`, set by set, without decoding anything."""
    table = read(name)
    rows = {KNOWN: table[KNOWN], **table["unknown"]}
    return [_find_set(which, row, Path(root)) for which, row in rows.items()]


def is_whole(name: str, root: str | Path) -> bool:
    """Whether every image of a suite lies under `root`, and the learned label space where it reads one."""
    learned = learned_file(name)
    has_space = learned is None or (Path(root) / learned).is_file()
    return has_space and all(one.is_complete for one in inventory(name, root))


def read_classes(reference: str | Sequence[str], root: Path) -> ClassNames:
    """Class names written out in the table, or read from a file of `name` or `n01440764 name` lines.

    The file is looked for under `root` and then in the package, which has ImageNet's.
    """
    if not isinstance(reference, str):
        return ClassNames(tuple(reference), tuple(str(i) for i in range(len(reference))))
    here, packaged = root / reference, Path(__file__).parent / reference
    path = here if here.is_file() or not packaged.is_file() else packaged
    if not path.is_file():
        raise DataError(f"expected the class names at {path}, got no file; write `n01440764 tench` a line, by class")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if all(WORDNET_ID.fullmatch(line.split()[0]) for line in lines):
        keys, names = zip(*((key, " ".join(rest)) for key, *rest in map(str.split, lines)), strict=True)
        return ClassNames(names, keys)
    return ClassNames(tuple(lines), tuple(str(i) for i in range(len(lines))))


def imagenet_classes() -> ClassNames:
    """The classes of ImageNet-1k in their order."""
    return read_classes("imagenet_classes.txt", Path(__file__).parent)


def known_classes(row: Mapping[str, Any], classes: ClassNames, root: Path) -> ClassNames:
    """The names of the known set: all of them, or those that have a folder in it."""
    if _is_listed(_places(row, root)):
        return classes
    found = classes.only_occurring({_folder(entry) for entry in _required_entries(KNOWN, row, root)})
    if not found.names:
        raise DataError(
            f"expected a folder per class, such as {classes.keys[0]}, in {_places(row, root)[0]}, got none; "
            f"images in one folder need the list of their labels: {looked_for(row)}"
        )
    return found


def known_entries(row: Mapping[str, Any], classes: ClassNames, root: Path) -> list[tuple[Entry, int]]:
    """The known images of a class that has a name, each with the position of its name."""
    is_listed = _is_listed(_places(row, root))
    keys = map(str, range(len(classes.names))) if is_listed else classes.keys
    position: dict[str | None, int] = {key: index for index, key in enumerate(keys)}
    placed = ((e, position.get(e.label if is_listed else _folder(e))) for e in _required_entries(KNOWN, row, root))
    return [(entry, place) for entry, place in placed if place is not None]


def known_samples(
    row: Mapping[str, Any], classes: ClassNames, encoded: Mapping[str, torch.Tensor], root: Path
) -> LabelledSamples:
    """The known images that could be read, with the position of each one's name."""
    read = [(encoded[entry.path], place) for entry, place in known_entries(row, classes, root) if entry.path in encoded]
    if not read:
        raise DataError(f"expected known images with labels under {root}, got none that match a class; check the list")
    z, label = zip(*read, strict=True)
    return LabelledSamples(torch.stack(z), torch.tensor(label))


def encode_set(
    which: str, row: Mapping[str, Any], root: Path, encoder: Encoder, progress: Progress
) -> dict[str, torch.Tensor]:
    """The features of one set by path, encoding what has not been encoded before."""
    entries = [entry for entry in _required_entries(which, row, root) if entry.identity != MISSING]
    slug = re.sub(r"[^A-Za-z0-9]+", "-", str(_places(row, root)[0].relative_to(root))).strip("-")
    folder = cache_dir("bench", encoder.fingerprint[:16], slug)
    cache, done = FeatureCache(folder, encoder), 0
    for batch in encode_images(entries, encoder, cache):
        progress(which, done := done + len(batch.rows), len(entries))
    features = load_features(folder)
    wanted = {entry.path for entry in entries}
    return {key: z for key, z in zip(features.keys, features.z, strict=True) if key in wanted}


class PartOfImage:
    """An encoder that reads a part of each image in another one's way; it has no texts."""

    def __init__(self, encoder: Encoder, part: str, images: Callable[[Sequence[Image]], torch.Tensor]) -> None:
        self.name, self.dim, self.images = f"{part.partition(',')[0]} by {encoder.name}", encoder.dim, images
        self.fingerprint = hashlib.sha256(f"{encoder.fingerprint} {part}".encode()).hexdigest()

    def texts(self, prompts: Sequence[str]) -> torch.Tensor:
        """Refuse: there are no parts of texts."""
        raise EncoderError(f"expected images for {self.name}, got texts; use the encoder itself")


def best_patch(encoder: PatchEncoder, labels: LabelSpace) -> PartOfImage:
    """An encoder of the patch of each image that is surest of a known name: all that GL-MCM reads."""

    def images(batch: Sequence[Image]) -> torch.Tensor:
        patches = encoder.patches(batch).float().cpu()
        sure = (patches @ labels.id_anchors.T).softmax(dim=-1).amax(dim=-1)
        return patches[torch.arange(len(patches)), sure.argmax(dim=1)]

    return PartOfImage(encoder, f"best patch, {labels.fingerprint}", images)


def noise_features(encoder: Encoder) -> torch.Tensor:
    """Features of images of random pixels, the same ones every time (TANL)."""
    pillow = import_extra("PIL.Image", "encode")
    drawn = np.random.default_rng(0).integers(0, 256, (NOISE_IMAGES, 224, 224, 3), dtype=np.uint8)
    pictures = [Image(f"noise-{i}", pillow.fromarray(pixels)) for i, pixels in enumerate(drawn)]
    parts = [encoder.images(pictures[start : start + 64]).cpu() for start in range(0, NOISE_IMAGES, 64)]
    return torch.cat(parts)


def _find_set(which: str, row: Mapping[str, Any], root: Path) -> FoundSet:
    where = _places(row, root)
    entries = list(_entries(row, root, where))
    absent = sum(entry.identity == MISSING for entry in entries)
    return FoundSet(
        which, where, len(entries) - absent, row.get("expected"), absent, bool(row.get("unclean")), looked_for(row)
    )


def looked_for(row: Mapping[str, Any]) -> str:
    """Where a set is looked for under the data root, in words."""
    return " or ".join([*(" with ".join(lists) for lists in _lists(row)), *row.get("folders", ())])


def _lists(row: Mapping[str, Any]) -> list[list[str]]:
    return [[item] if isinstance(item, str) else item for item in row.get("lists", ())]


def _places(row: Mapping[str, Any], root: Path) -> tuple[Path, ...]:
    """The lists or the folder that a set is found by: a list of which no image is there is the last to be taken."""
    lists = [tuple(root / path for path in item) for item in _lists(row)]
    lists = [paths for paths in lists if all(path.is_file() for path in paths)]
    folders = [(root / path,) for path in row.get("folders", ()) if (root / path).is_dir()]
    whole = [paths for paths in lists if any(one.identity != MISSING for one in _entries(row, root, paths))]
    return next(iter([*whole, *folders, *lists]), ())


def _is_listed(places: Sequence[Path]) -> bool:
    return bool(places) and places[0].is_file()


def _required_entries(which: str, row: Mapping[str, Any], root: Path) -> list[Entry]:
    if not (where := _places(row, root)):
        raise DataError(
            f"expected the set {which!r} under {root}, got none of {looked_for(row)}; "
            f"`unseen bench --check {root}` lists what is there"
        )
    return list(_entries(row, root, where))


def _entries(row: Mapping[str, Any], root: Path, places: Sequence[Path]) -> Iterator[Entry]:
    start = root / row.get("under", "") if _is_listed(places) else None
    return (entry for place in places for entry in find_images(place, root=start))


def _folder(entry: Entry) -> str:
    return Path(entry.path).parent.name
