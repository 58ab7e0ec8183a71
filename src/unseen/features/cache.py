"""Features on disk: a folder of shards that survives a kill and takes two writers at once.

A shard, safetensors or Parquet, is written whole under a name nobody else has; the manifest is written once and only
says which encoder the folder belongs to. So no writer ever changes a file of another, and what is there is always
readable. A row may carry the place of its image among the inputs (`index`), so that shards are read in that order.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.base import Encoder
from unseen.errors import DataError, EncoderError, SettingError, StateError
from unseen.images import table as parquet
from unseen.images.sources import Batch, Entry, Image, read_entries
from unseen.storage.files import load_tensors, replacing, save_tensors
from unseen.storage.remote import Location, Remote, location, reading, writing

KIND = "unseen-features"
MANIFEST = "manifest.json"
FOLDER = "folder"
NAMES = ("features", "z")  # what a single file may call its vectors
FORMATS = ("safetensors", "parquet")
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Features:
    """Unit vectors with the key of each, and what is known about them."""

    z: Float[Tensor, "n d"]
    keys: tuple[str, ...]
    labels: Int[Tensor, " n"] | None = None
    classes: tuple[str, ...] = ()
    encoder: str = ""
    columns: Mapping[str, Sequence[object] | Tensor] = field(default_factory=dict)  # what else the file says of each

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str) -> tuple[str, ...]:
        """Return one word per sample from a column; `folder` is where the image lay, in a table: the table."""
        if name in self.columns:
            values = self.columns[name]
            return tuple(map(str, values.tolist() if isinstance(values, Tensor) else values))
        if name == FOLDER:
            return tuple(key.rpartition("#")[0] or key.rpartition("/")[0] for key in self.keys)
        known = ", ".join((*self.columns, FOLDER))
        raise SettingError(f"expected a column out of {known}, got {name!r}; choose one of them")


class FeatureCache:
    """A folder of features from one encoder."""

    def __init__(self, folder: str | Path, encoder: Encoder, *, form: str = FORMATS[0]) -> None:
        if form not in FORMATS:
            raise SettingError(f"expected a format out of {', '.join(FORMATS)}, got {form!r}; choose one of them")
        self.folder, self.form = location(folder), form
        claim(self.folder, encoder.name, encoder.fingerprint)
        self.fingerprint = encoder.fingerprint
        self.done = {(row["key"], row["identity"]) for _, rows in read_shards(self.folder) for row in rows}

    def has(self, entry: Entry) -> bool:
        """Tell whether this very file, unchanged, is in the cache."""
        return (entry.path, entry.identity) in self.done

    def add(self, images: Sequence[Image], z: Float[Tensor, "n d"]) -> None:
        """Write one shard, whole or not at all."""
        if not images:
            return
        rows = [{"key": image.path, "identity": image.identity, "label": image.label} for image in images]
        # the time keeps shards in the order of writing, the random part keeps two writers apart
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.{self.form}"
        write_shard(self.folder / name, z, rows, self.fingerprint)
        self.done |= {(row["key"], row["identity"]) for row in rows}

    def vectors(self, images: Sequence[Image], encoder: Encoder) -> Float[Tensor, "n d"]:
        """Return one vector per image: read where it is here, else computed and kept."""
        missing = [image for image in images if (image.path, image.identity) not in self._stored]
        if missing:
            z = encoder.images(missing).cpu()
            self.add(missing, z)
            self._stored.update(((image.path, image.identity), row) for image, row in zip(missing, z, strict=True))
        return torch.stack([self._stored[image.path, image.identity] for image in images])

    @cached_property
    def _stored(self) -> dict[tuple[str, str], Tensor]:
        shards = read_shards(self.folder)
        return {(row["key"], row["identity"]): z for part, rows in shards for row, z in zip(rows, part, strict=True)}


def stream_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache | None = None, *, size: int = 64
) -> Iterator[tuple[Batch, Float[Tensor, "n d"]]]:
    """Yield batches in order with one vector per readable image; what the cache holds is not encoded again."""
    for batch in read_entries(entries, size=size):
        if not batch:
            yield batch, torch.empty(0, encoder.dim)
        elif cache is None:
            yield batch, encoder.images(batch.images).cpu()
        else:
            yield batch, cache.vectors(batch.images, encoder)


def encode_images(
    entries: Iterable[Entry], encoder: Encoder, cache: FeatureCache, *, size: int = 64
) -> Iterator[Batch]:
    """Encode what is not in the cache yet, and yield each batch once it is on disk."""
    for batch in read_entries((entry for entry in entries if not cache.has(entry)), size=size):
        cache.add(batch.images, encoder.images(batch.images))
        yield batch


def load_features(path: str | Path) -> Features:
    """Return the features of a folder written by `unseen encode`, or of one safetensors or Parquet file."""
    place = location(path)
    if place.is_dir():
        return _load_folder(place)
    if not place.is_file():
        raise DataError(f"expected features, got nothing at {path}; make them with: unseen encode IMAGES -o {path}")
    with reading(place) as local:
        return _load_table(local) if place.suffix == ".parquet" else _load_file(local)


def _load_folder(folder: Location) -> Features:
    manifest = _read_manifest(folder / MANIFEST)
    latest: dict[str, tuple[int, Tensor, str | None]] = {}
    for z, rows in read_shards(folder):
        # a file encoded again after a change keeps its place and gets its new vector
        latest.update((row["key"], (_place(row), vector, row["label"])) for row, vector in zip(rows, z, strict=True))
    if not latest:
        raise DataError(f"expected at least one shard in {folder}, got none; run unseen encode again")
    keys = sorted(latest, key=lambda key: latest[key][0])  # stable: without places, the order of writing
    words = [latest[key][2] for key in keys]
    labels, classes = _numbered(words)
    columns = {} if labels is None else {"label": words}
    z = torch.stack([latest[key][1] for key in keys])
    return Features(z, tuple(keys), labels, classes, manifest["fingerprint"], columns)


def _place(row: Row) -> int:
    index = row.get("index")
    return -1 if index is None else int(index)


def _load_table(path: Path) -> Features:
    z, columns, metadata = parquet.read_table(path)
    keys = tuple(map(str, columns.get("key", (f"{path.stem}/{i}" for i in range(len(z))))))
    words = [None if word is None else str(word) for word in columns.get("label", [None] * len(z))]
    labels, classes = _numbered(words)
    encoder = metadata.get("fingerprint", "")
    return Features(normalize(z.float(), dim=-1), keys, labels, classes, encoder, columns)


def _load_file(path: Path) -> Features:
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise DataError(f"expected a safetensors file at {path}, got a damaged one ({error}); copy it again") from error
    name = next((name for name in NAMES if name in tensors), None)
    if name is None or tensors[name].ndim != 2 or not tensors[name].is_floating_point():
        found = {key: list(tensor.shape) for key, tensor in tensors.items()}
        raise DataError(f"expected a tensor 'features' or 'z' of shape [n, d] in {path}, got {found}; rename it")
    z = tensors[name].float()
    keys = _strings(metadata, "keys") or _strings(metadata, "names") or tuple(f"{path.stem}/{i}" for i in range(len(z)))
    if len(keys) != len(z):
        raise DataError(f"expected {len(z)} names in {path}, one per row, got {len(keys)}; write the file again")
    encoder = metadata.get("fingerprint", metadata.get("encoder", ""))
    # stored in float16 they are unit to three digits only
    classes = _strings(metadata, "classes")
    return Features(normalize(z, dim=-1), keys, tensors.get("labels"), classes, encoder, _columns(tensors, metadata, z))


def _columns(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], z: Tensor
) -> dict[str, Sequence[object] | Tensor]:
    """Return what a file says of each sample: whole numbers as a tensor, words as a JSON list in its metadata."""
    found: dict[str, Sequence[object] | Tensor] = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.shape == z.shape[:1] and not tensor.is_floating_point()
    }
    for name, text in metadata.items():
        if text.startswith("[") and len(values := json.loads(text)) == len(z):
            found[name] = values
    return found


def _strings(metadata: dict[str, str], field: str) -> tuple[str, ...]:
    return tuple(json.loads(metadata.get(field, "[]")))


def _numbered(labels: Sequence[str | None]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return labels as numbers: as they are where all are numbers, else as places in the sorted names."""
    known = [label for label in labels if label is not None]
    if len(known) < len(labels):
        return None, ()
    if all(label.lstrip("-").isdigit() for label in known):
        return torch.tensor([int(label) for label in known]), ()
    classes = tuple(sorted(set(known)))
    place = {name: index for index, name in enumerate(classes)}
    return torch.tensor([place[label] for label in known]), classes


def write_shard(place: Location, z: Float[Tensor, "n d"], rows: Sequence[Row], fingerprint: str) -> None:
    """Write vectors and what is known of each as one file, whole or not at all, in the format its name ends with."""
    with writing(place) as local:
        if place.suffix == ".parquet":
            parquet.write_shard(local, z, rows, {"kind": KIND, "fingerprint": fingerprint})
            return
        header = json.dumps({"fingerprint": fingerprint, "rows": rows}, ensure_ascii=False)
        save_tensors(local, {"z": z.cpu().contiguous()}, kind=KIND, header=header)


def read_shards(folder: Location) -> Iterator[tuple[Float[Tensor, "n d"], list[Row]]]:
    """Yield the shards of a folder in the order of their names, every byte checked."""
    places: Sequence[Location] = folder.files(recursive=False) if isinstance(folder, Remote) else list(folder.iterdir())
    shards = [place for place in places if any(fnmatch(place.name, f"[0-9]*.{form}") for form in FORMATS)]
    for place in sorted(shards, key=lambda place: place.name):
        with reading(place) as local:
            try:
                yield _read_shard(local)
            except (StateError, DataError) as error:
                raise DataError(f"{error}; or delete {place.name} and run unseen encode again") from error


def _read_shard(path: Path) -> tuple[Tensor, list[Row]]:
    if path.suffix == ".parquet":
        z, columns, _ = parquet.read_table(path)
        return z, [dict(zip(parquet.ROW, row, strict=True)) for row in zip(*map(columns.get, parquet.ROW), strict=True)]
    tensors, header = load_tensors(path, kind=KIND)
    return tensors["z"], json.loads(header)["rows"]


def claim(folder: Location, encoder: str, fingerprint: str) -> None:
    """Write the manifest of a new folder, or check that the folder belongs to the same encoder."""
    path = folder / MANIFEST
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        if isinstance(folder, Path) and any(folder.glob("*.safetensors")):
            raise DataError(f"expected an empty folder or one with a {MANIFEST}, got {folder}; choose another folder")
        manifest = {"kind": KIND, "version": 1, "encoder": encoder, "fingerprint": fingerprint}
        _create(path, json.dumps(manifest, indent=1))
    found = _read_manifest(path)
    if found["fingerprint"] != fingerprint:
        raise EncoderError(
            f"expected a cache of {encoder} ({fingerprint[:8]}), got one of {found['encoder']} "
            f"({found['fingerprint'][:8]}) at {folder}; choose another folder with -o, or the same --encoder"
        )


def _create(path: Location, text: str) -> None:
    """Write a file that is whole when it appears and is never replaced: of two writers the first wins."""
    if isinstance(path, Remote):  # a store has no links; two first writers at once, and the last wins
        path.write_bytes(text.encode())
        return
    own = path.with_name(f".{uuid.uuid4().hex}")
    with replacing(own) as temporary:
        temporary.write_text(text, encoding="utf-8")
    try:
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()


def _read_manifest(path: Location) -> dict[str, str]:
    try:
        manifest: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"expected {MANIFEST} in {path.parent}, got none that can be read; run unseen encode"
        ) from error
    if manifest.get("kind") != KIND:
        raise DataError(f"expected a folder of unseen features, got {manifest.get('kind')!r} at {path.parent}")
    return manifest
