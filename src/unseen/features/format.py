"""The one reader of features: a folder of shards, or a single safetensors or Parquet file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Self
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import normalize

from unseen.errors import DataError, SettingError
from unseen.features.shards import MANIFEST, Row, read_manifest, read_parquet, read_shards
from unseen.storage.files import read_safetensors
from unseen.storage.remote import Location, local_copy, location

FOLDER = "folder"
TENSORS = ("features", "z")  # what a single file may call its vectors
KEYS = ("key", "id", "path")  # what a table may call the keys of its rows


@dataclass(frozen=True, eq=False)
class Features:
    """Vectors with the key of each (in a file of text features: the name), and what is known about them."""

    z: Float[Tensor, "n d"]
    keys: tuple[str, ...]
    labels: Int[Tensor, " n"] | None = None
    classes: tuple[str, ...] = ()
    encoder: str = ""
    columns: Mapping[str, Sequence[object] | Tensor] = field(default_factory=dict)  # what else the file says of each
    metadata: Mapping[str, str] = field(default_factory=dict)  # what a single file says of itself
    name: str = ""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def made_by(self) -> str:
        """The fingerprint of the encoder; "" where it is not known, or only by a name."""
        return "" if self.encoder == self.metadata.get("encoder") else self.encoder

    @property
    def true_labels(self) -> Int[Tensor, " n"]:
        """The labels, each an index into the classes, or say what is wrong with them."""
        if self.labels is None:
            raise DataError(f"expected labels in {self.name}, got none; this needs the true class of every image")
        last = len(self.classes) - 1
        if self.classes and bool(((self.labels < 0) | (self.labels > last)).any()):
            raise DataError(
                f"expected labels from 0 to {last} in {self.name}, one index into its {last + 1} classes, "
                f"got {int(self.labels.min())} to {int(self.labels.max())}; list every class"
            )
        return self.labels

    @property
    def labelled(self) -> Self:
        """The same features with labels: where they have none, the folder of each image is its class."""
        if self.labels is not None:
            return self
        folders = [PurePath(folder).name for folder in self.column(FOLDER)]
        if not all(folders) or set(folders) == {self.name}:  # keys that were made up, for a file without any
            raise DataError(f"expected labelled features in {self.name}, got no labels; encode a folder per class")
        labels, classes = _number_labels([f"{folder}/" for folder in folders])  # no number, whatever it is called
        return replace(self, labels=labels, classes=tuple(name.removesuffix("/") for name in classes))

    def column(self, name: str) -> tuple[str, ...]:
        """One word per sample from a column; `folder` is where the image lay, in a table: the table."""
        if name in self.columns:
            values = self.columns[name]
            if missing := [] if isinstance(values, Tensor) else [i for i, value in enumerate(values) if value is None]:
                raise DataError(
                    f"expected a value of {name!r} for every sample, got none for {len(missing):,} of {len(values):,}, "
                    f"row {missing[0]} the first; fill them or leave those samples out"
                )
            return tuple(map(str, values.tolist() if isinstance(values, Tensor) else values))
        if name == FOLDER:
            return tuple(key.rpartition("#")[0] or key.rpartition("/")[0] for key in self.keys)
        known = ", ".join((*self.columns, FOLDER))
        raise SettingError(f"expected a column out of {known}, got {name!r}; choose one of them")


def load_features(path: str | Path, *, unit: bool = True) -> Features:
    """The features of a folder written by `unseen encode`, or of one safetensors, Parquet, Lance, npy or npz file.

    Vectors stored in float16 are unit to three digits only; `unit` makes them unit in float32.
    """
    place = location(path)
    if place.is_dir() and place.suffix != ".lance":
        return _load_folder(place)
    if not place.exists():
        raise DataError(f"expected features, got nothing at {path}; make them with: unseen encode IMAGES -o {path}")
    with local_copy(place) as local:
        found = READERS.get(place.suffix, _load_file)(local)
    return replace(found, z=normalize(found.z, dim=-1)) if unit else found


def _load_folder(folder: Location) -> Features:
    manifest = read_manifest(folder / MANIFEST)
    latest: dict[str, tuple[int, Tensor, str | None]] = {}
    for z, rows in read_shards(folder):
        # a file encoded again after a change keeps its place and gets its new vector
        latest.update((row["key"], (_index(row), vector, row["label"])) for row, vector in zip(rows, z, strict=True))
    if not latest:
        raise DataError(f"expected at least one shard in {folder}, got none; run unseen encode again")
    keys = sorted(latest, key=lambda key: latest[key][0])  # stable: without places, the order of writing
    words = [latest[key][2] for key in keys]
    labels, classes = _number_labels(words)
    columns = {} if labels is None else {"label": words}
    z = torch.stack([latest[key][1] for key in keys])
    return Features(z, tuple(keys), labels, classes, manifest["fingerprint"], columns, name=folder.name)


def _index(row: Row) -> int:
    index = row.get("index")
    return -1 if index is None else int(index)


def _load_table(path: Path) -> Features:
    z, columns, metadata = read_parquet(path)
    named = next((columns[name] for name in KEYS if name in columns), None)
    keys = tuple(map(str, named or (f"{path.stem}/{i}" for i in range(len(z)))))
    words = [None if word is None else str(word) for word in columns.get("label", [None] * len(z))]
    labels, classes = _number_labels(words)
    encoder = metadata.get("fingerprint", "")
    return Features(z.float(), keys, labels, classes, encoder, columns, metadata, path.stem)


def _load_arrays(path: Path) -> Features:
    """Vectors of NumPy: one array, or `features` (or `z`) beside `keys` and `labels`; never a pickle."""
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = {TENSORS[0]: loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise DataError(f"expected an array of numbers at {path}, got {error}; save it with numpy.save") from error
    keys = arrays.pop("keys", None)
    if len(arrays) == 1:  # whatever it is called
        arrays = {TENSORS[0]: next(iter(arrays.values()))}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array.dtype.kind in "fiu"}
    return _of_tensors(path, tensors, {} if keys is None else {"keys": json.dumps([*map(str, keys)])})


def _load_file(path: Path) -> Features:
    try:
        return _of_tensors(path, *read_safetensors(path))
    except (SafetensorError, OSError) as error:
        raise DataError(f"expected a safetensors file at {path}, got a damaged one ({error}); copy it again") from error


def _of_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Features:
    z = _checked_vectors(path, tensors)
    labels = tensors.get("labels")
    names, classes = (_strings(path, metadata, key) for key in ("names", "classes"))
    if labels is not None and not classes and len(names) != len(z):
        names, classes = (), names  # names of the classes, not of the rows
    keys = _strings(path, metadata, "keys") or names or tuple(f"{path.stem}/{i}" for i in range(len(z)))
    if len(keys) != len(z):
        raise DataError(f"expected {len(z)} keys in {path}, one per row, got {len(keys)}; write the file again")
    if labels is not None and (labels.shape != (len(z),) or labels.is_floating_point()):
        raise DataError(
            f"expected one integer label per row in {path}, [{len(z)}], "
            f"got {labels.dtype} {list(labels.shape)}; write class indices"
        )
    labels = None if labels is None else labels.long()
    encoder = metadata.get("fingerprint", metadata.get("encoder", ""))
    columns = _columns(tensors, metadata, len(z))
    return Features(z, keys, labels, classes, encoder, columns, metadata, path.stem)


def _checked_vectors(path: Path, tensors: Mapping[str, Tensor]) -> Float[Tensor, "n d"]:
    z = next((tensors[name] for name in TENSORS if name in tensors), None)
    if z is None or z.ndim != 2 or not z.is_floating_point():
        found = {key: f"{tensor.dtype} {list(tensor.shape)}" for key, tensor in tensors.items()}
        raise DataError(
            f"expected a floating-point tensor 'features' or 'z' of shape [n, d] in {path}, got {found}; "
            "write one row per image"
        )
    if not bool(z.isfinite().all()):
        row = int((~z.isfinite()).any(1).nonzero()[0])
        raise DataError(
            f"expected finite features in {path}, got NaN or infinity in row {row}; "
            "drop the images that failed to encode"
        )
    return z.float()


def _columns(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], rows: int
) -> dict[str, Sequence[object] | Tensor]:
    """The columns of a file: whole numbers, which are a tensor, and words, a JSON list in its metadata."""
    found: dict[str, Sequence[object] | Tensor] = {
        name: tensor for name, tensor in tensors.items() if tensor.shape == (rows,) and not tensor.is_floating_point()
    }
    for name, text in metadata.items():
        if text.startswith("[") and len(values := json.loads(text)) == rows:
            found[name] = values
    return found


def _strings(path: Path, metadata: Mapping[str, str], field: str) -> tuple[str, ...]:
    try:
        values = json.loads(metadata.get(field, "[]"))
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"expected {field!r} as a JSON list of strings in the metadata of {path}; write it again")
    return tuple(values)


def _number_labels(labels: Sequence[str | None]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Labels as numbers: as they are where all are numbers, else as places in the sorted names."""
    known = [label for label in labels if label is not None]
    if len(known) < len(labels):
        return None, ()
    if all(label.lstrip("-").isdigit() for label in known):
        return torch.tensor([int(label) for label in known]), ()
    classes = tuple(sorted(set(known)))
    place = {name: index for index, name in enumerate(classes)}
    return torch.tensor([place[label] for label in known]), classes


READERS = {".parquet": _load_table, ".lance": _load_table, ".npy": _load_arrays, ".npz": _load_arrays}  # by ending
