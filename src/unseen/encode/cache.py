"""Features on disk: a folder of safetensors shards that survives a kill and takes two writers at once.

A shard is written whole under a name nobody else has; the manifest is written once and only says which encoder the
folder belongs to. So no writer ever changes a file of another, and what is there is always readable.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encode.base import Encoder
from unseen.encode.images import Batch, Entry, Image, read_entries
from unseen.errors import DataError, EncoderError, StateError
from unseen.files import load_tensors, replacing, save_tensors

KIND = "unseen-features"
MANIFEST = "manifest.json"
NAMES = ("features", "z")  # what a single file may call its vectors


@dataclass(frozen=True, eq=False)
class Features:
    """Unit vectors with the key of each, and what is known about them."""

    z: Float[Tensor, "n d"]
    keys: tuple[str, ...]
    labels: Int[Tensor, " n"] | None = None
    classes: tuple[str, ...] = ()
    encoder: str = ""

    def __len__(self) -> int:
        return len(self.keys)


class FeatureCache:
    """A folder of features from one encoder."""

    def __init__(self, folder: str | Path, encoder: Encoder) -> None:
        self.folder = Path(folder)
        manifest = {"kind": KIND, "version": 1, "encoder": encoder.name, "fingerprint": encoder.fingerprint}
        _claim(self.folder / MANIFEST, manifest)
        self.fingerprint = encoder.fingerprint
        self.done = {(row["key"], row["identity"]) for _, rows in _shards(self.folder) for row in rows}

    def has(self, entry: Entry) -> bool:
        """Tell whether this very file, unchanged, is in the cache."""
        return (entry.path, entry.identity) in self.done

    def add(self, images: Sequence[Image], z: Float[Tensor, "n d"]) -> None:
        """Write one shard, whole or not at all."""
        if not images:
            return
        rows = [{"key": image.path, "identity": image.identity, "label": image.label} for image in images]
        header = json.dumps({"fingerprint": self.fingerprint, "rows": rows}, ensure_ascii=False)
        # the time keeps shards in the order of writing, the random part keeps two writers apart
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:12]}.safetensors"
        save_tensors(self.folder / name, {"z": z.cpu().contiguous()}, kind=KIND, header=header)
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
        shards = _shards(self.folder)
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
    """Return the features of a folder written by `unseen encode`, or of a single safetensors file."""
    path = Path(path)
    if path.is_dir():
        return _load_folder(path)
    if not path.is_file():
        raise DataError(f"expected features, got nothing at {path}; make them with: unseen encode IMAGES -o {path}")
    return _load_file(path)


def _load_folder(folder: Path) -> Features:
    manifest = _read_manifest(folder / MANIFEST)
    latest: dict[str, tuple[Tensor, str | None]] = {}
    for z, rows in _shards(folder):
        # a file encoded again after a change keeps its place and gets its new vector
        latest.update((row["key"], (vector, row["label"])) for row, vector in zip(rows, z, strict=True))
    if not latest:
        raise DataError(f"expected at least one shard in {folder}, got none; run unseen encode again")
    labels, classes = _numbered([label for _, label in latest.values()])
    z = torch.stack([vector for vector, _ in latest.values()])
    return Features(z, tuple(latest), labels, classes, manifest["fingerprint"])


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
    return Features(normalize(z, dim=-1), keys, tensors.get("labels"), _strings(metadata, "classes"), encoder)


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


def _shards(folder: Path) -> Iterator[tuple[Tensor, list[dict[str, Any]]]]:
    for path in sorted(folder.glob("[0-9]*.safetensors")):
        try:
            tensors, header = load_tensors(path, kind=KIND)
        except StateError as error:
            raise DataError(f"{error}; or delete {path.name} and run unseen encode again") from error
        yield tensors["z"], json.loads(header)["rows"]


def _claim(path: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a new folder, or check that the folder belongs to the same encoder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        if any(path.parent.glob("*.safetensors")):
            raise DataError(
                f"expected an empty folder or one with a {MANIFEST}, got {path.parent}; choose another folder"
            )
        _create(path, json.dumps(manifest, indent=1))
    found = _read_manifest(path)
    if found["fingerprint"] != manifest["fingerprint"]:
        raise EncoderError(
            f"expected a cache of {manifest['encoder']} ({manifest['fingerprint'][:8]}), got one of {found['encoder']} "
            f"({found['fingerprint'][:8]}) at {path.parent}; choose another folder with -o, or the same --encoder"
        )


def _create(path: Path, text: str) -> None:
    """Write a file that is whole when it appears and is never replaced: of two writers the first wins."""
    own = path.with_name(f".{uuid.uuid4().hex}")
    with replacing(own) as temporary:
        temporary.write_text(text, encoding="utf-8")
    try:
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()


def _read_manifest(path: Path) -> dict[str, str]:
    try:
        manifest: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"expected {MANIFEST} in {path.parent}, got none that can be read; run unseen encode"
        ) from error
    if manifest.get("kind") != KIND:
        raise DataError(f"expected a folder of unseen features, got {manifest.get('kind')!r} at {path.parent}")
    return manifest
