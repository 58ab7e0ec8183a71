"""From a table and a folder to a suite."""

from __future__ import annotations

import hashlib
import json
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unseen.encoders import Encoder, load_encoder
from unseen.encoders.base import PatchEncoder
from unseen.errors import DataError, SettingError
from unseen.features import Features, load_features
from unseen.images import Image
from unseen.labels import LabelSpace
from unseen.labels.prompts import TextEncoder, text_fingerprint
from unseen.storage.files import cache_dir
from unseen_bench.mining import DEFAULT_MINER, mine, word_list
from unseen_bench.suites import images
from unseen_bench.suites.base import KNOWN, LabelledSamples, Source, Suite, needs_images, read

ENCODER = "ViT-B/16"


def load(name: str, folder: str | Path) -> Suite:
    """A suite of the package, or one described by your own TOML file, over the feature files in `folder`."""
    table, folder = read(name), Path(folder)
    if needs_images(name):
        raise SettingError(f"expected a suite over feature files, got {name!r}, which reads images; use --data")
    if "labels" in table:
        classes = images.read_classes(table["labels"]["names"], folder)
        labels = _build_labels(classes.names, table["labels"], folder, table["labels"].get("encoder", ENCODER))
        matches = {name.replace(" ", "_"): index for index, name in enumerate(classes.names)}
        matches |= {name: index for index, name in enumerate(classes.names)}
    else:
        labels, matches = from_text_rows(table, folder)
    most = table.get("most")
    known = known_samples(table[KNOWN], folder, matches).thinned(most)
    unknown = {which: unknown_samples(row, folder).thinned(most) for which, row in table["unknown"].items()}
    return Suite.of(Source(name, folder), table, labels, known, unknown)


def feature_files_of(name: str) -> list[str]:
    """The feature files that a suite reads."""
    return files_of(read(name))


Matches = dict[str, int]  # class of the known images -> position of its name


def files_of(table: Mapping[str, Any]) -> list[str]:
    """The names of every file in the features' folder that a table reads."""
    rows = [table[KNOWN], *table.get("negatives", ()), *table["unknown"].values()]
    named = [f"{row[key]}.safetensors" for row in rows for key in ("text", "images") if key in row]
    lists = [row[key] for row in rows for key in ("rows", "except", "classes") if isinstance(row.get(key), str)]
    return list(dict.fromkeys([*named, *(reference.partition("#")[0] for reference in lists)]))


def from_text_rows(table: Mapping[str, Any], folder: Path) -> tuple[LabelSpace, Matches]:
    """The label space of rows of text features, and where each class of the known images stands in it."""
    known, rows = _text(table[KNOWN], folder)
    parts = [_text(row, folder) for row in table["negatives"]]
    names = _distinct([known.keys[row] for row in rows], set())
    negatives = _distinct([text.keys[row] for text, rows in parts for row in rows], set(names))
    labels = LabelSpace(
        tuple(names),
        tuple(negatives),
        known.z[rows],
        torch.cat([text.z[rows] for text, rows in parts]),
        prompt=known.metadata.get("template", ""),
        encoder=known.metadata.get("encoder", ""),
    )
    keys = known.column(table[KNOWN]["match"]) if "match" in table[KNOWN] else range(len(known.z))
    return labels, {str(keys[row]): position for position, row in enumerate(rows)}


def known_samples(row: Mapping[str, Any], folder: Path, matches: Matches) -> LabelledSamples:
    """The images whose class is one of the known names."""
    images = _load(folder, row["images"])
    position = torch.tensor([matches.get(name, -1) for name in images.classes])[images.true_labels]
    return LabelledSamples(images.z[position >= 0], position[position >= 0])


def unknown_samples(row: Mapping[str, Any], folder: Path) -> LabelledSamples:
    """The images of an unknown set, or of some classes of it."""
    images = _load(folder, row["images"])
    if "classes" not in row:
        return LabelledSamples.unknown(images.z)
    wanted = torch.tensor(_read_indices(row["classes"], folder))
    return LabelledSamples.unknown(images.z[torch.isin(images.true_labels, wanted)])


def _load(folder: Path, name: str) -> Features:
    return load_features(folder / f"{name}.safetensors", unit=False)  # as stored: published figures are of these


def _text(row: Mapping[str, Any], folder: Path) -> tuple[Features, list[int]]:
    text = _load(folder, row["text"])
    rows = _read_indices(row["rows"], folder) if "rows" in row else list(range(len(text.z)))
    left_out = set(_read_indices(row["except"], folder)) if "except" in row else set()
    return text, [index for index in rows if index not in left_out]


def _read_indices(reference: str | list[int], folder: Path) -> list[int]:
    """A list of indices written out, or found at `file.json#key/key` in the features' folder."""
    if isinstance(reference, list):
        return reference
    file, _, keys = reference.partition("#")
    try:
        found = json.loads((folder / file).read_text())
        for key in keys.split("/"):
            found = found[key]
    except (OSError, KeyError, json.JSONDecodeError) as error:
        raise DataError(
            f"expected an index list at {reference} in {folder}, got {error!r}; check the folder"
        ) from error
    return list(found)


def _distinct(names: list[str], taken: set[str]) -> list[str]:
    """Names in which one that stood before gets a number: a label space wants each name once."""
    result: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({n})" for n in count(2))
        free = next(each for each in chain([name], numbered) if each not in result and each not in taken)
        result[free] = None
    return list(result)


def load_images(
    name: str,
    root: str | Path,
    *,
    encoder: str | None = None,
    progress: images.Progress = lambda which, done, total: None,
) -> Suite:
    """A suite over the images under `root`; unknown sets that are not there are left out.

    Features and mined names are kept, so that a second call reads them.
    """
    table, root = read(name), Path(root)
    if not needs_images(name):
        raise SettingError(f"expected a suite over images, got {name!r}, which reads feature files; use --features")
    chosen = encoder or table.get("encoder", ENCODER)
    model = load_encoder(chosen)
    classes = images.known_classes(table[KNOWN], images.read_classes(table["labels"]["names"], root), root)
    here = [found.set for found in images.inventory(name, root) if found.images]
    present = {which: row for which, row in table["unknown"].items() if which in here}
    if not present:
        raise DataError(
            f"expected at least one unknown set of {name!r} under {root}, got none; "
            f"`unseen bench {name} --check {root}` lists what is there"
        )

    def encoded(by: Encoder) -> tuple[LabelledSamples, dict[str, LabelledSamples]]:
        rows = {KNOWN: table[KNOWN], **present}
        z = {which: images.encode_set(which, row, root, by, progress) for which, row in rows.items()}
        known = images.known_samples(table[KNOWN], classes, z[KNOWN], root)
        return known, {which: LabelledSamples.unknown(_stack_features(which, z[which])) for which in present}

    @cache
    def best_patches(labels: LabelSpace) -> Tensor:
        assert isinstance(model, PatchEncoder)
        known, unknown = encoded(images.best_patch(model, labels))
        return torch.cat([part.z for part in (known, *unknown.values())])

    @cache
    def views() -> Tensor:
        numbered = [encoded(random_view(model, number)) for number in range(VIEWS)]
        return torch.stack([torch.cat([part.z for part in (k, *u.values())]) for k, u in numbered], dim=1)

    return Suite.of(
        Source(name, root, chosen),
        table,
        _build_labels(classes.names, table["labels"], root, chosen, model=model),
        *encoded(model),
        own_space=_own_spaces(classes.names, table["labels"], root, chosen, model),
        best_patches=best_patches if isinstance(model, PatchEncoder) else None,
        views=views,
        noise=cache(partial(images.noise_features, model)),
    )


def reload(source: Source) -> Suite:
    """The suite of a source again, as another process does."""
    if source.encoder is None:
        return load(source.name, source.folder)
    return load_images(source.name, source.folder, encoder=source.encoder)


def _own_spaces(
    names: Sequence[str], options: Mapping[str, Any], folder: Path, encoder: str, model: TextEncoder
) -> Callable[[str], LabelSpace | None]:
    """What builds the published label space of a method, each once, over the suite's own words where it has any.

    With learned vectors of the names every method shares them.
    """
    if "learned" in options or options.get("shared"):
        return lambda name: None
    words = {key: options[key] for key in ("words",) if key in options}

    def build(own: Mapping[str, Any]) -> LabelSpace:
        return _build_labels(names, {**words, **own}, folder, encoder, model=model)

    return cache(lambda name: published_space(name, build))


def _build_labels(
    names: Sequence[str], options: Mapping[str, Any], folder: Path, encoder: str, *, model: TextEncoder | None = None
) -> LabelSpace:
    """The names with mined negatives, from the cache where the same were mined before."""
    model = model or load_encoder(encoder)
    if "learned" in options:
        return _learned_space(names, folder / options["learned"], model)
    words = folder / options["words"] if "words" in options else None
    wanted = {key: options.get(key) for key in ("negatives", "miner", "prompt")}
    key = json.dumps([list(names), wanted, words and words.read_bytes().hex(), text_fingerprint(model)])
    path = cache_dir("spaces") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"
    if path.exists():
        return LabelSpace.load(path)
    space = mine(
        list(names),
        model,
        negatives=options.get("negatives", 10_000),
        miner=options.get("miner", DEFAULT_MINER),
        prompt=options.get("prompt"),
        corpus=word_list(words) if words else None,
    )
    space.save(path)
    return space


def _learned_space(names: Sequence[str], path: Path, model: TextEncoder) -> LabelSpace:
    """The label space that `unseen bench learn` wrote, its names in the suite's order."""
    space = LabelSpace.load(path)
    if other := set(space.names) ^ set(names):
        raise DataError(
            f"expected the {len(names):,} names of the suite in {path}, got {len(space.names):,}, and {min(other)!r} "
            "is in one of them only; learn with a folder of photos for each of the suite's names"
        )
    if space.manifest.get("encoder_fingerprint") not in (None, model.fingerprint):
        raise DataError(f"expected prompts learned with {model.name} in {path}, got {space.encoder}; learn with it")
    return replace(space, names=tuple(names), id_anchors=space.id_anchors[[space.names.index(one) for one in names]])


def _stack_features(which: str, features: Mapping[str, Tensor]) -> Tensor:
    if not features:
        raise DataError(
            f"expected readable images in the set {which!r}, got none; open some of them to see what they are"
        )
    return torch.stack(list(features.values()))


Options = Mapping[str, Any]

_PHOTO: tuple[Options, ...] = ({"prompt": "photo", "negatives": 0},)  # the known names alone, as MCM words them
PUBLISHED: dict[str, tuple[Options, ...]] = {  # several: their negatives together
    **dict.fromkeys(("mcm", "gl-mcm", "maxlogit", "energy", "entropy", "variance"), _PHOTO),
    **{name: ({"miner": name},) for name in ("neglabel", "csp", "adaneg", "dnm", "tanl")},
    "infoood-reconstructed": ({"miner": "neglabel"},),
    "clipscope": ({"miner": "clipscope-near"}, {"miner": "clipscope-far"}),
}


def published_space(name: str, build: Callable[[Options], LabelSpace]) -> LabelSpace | None:
    """The label space that the paper of a method describes, None where it describes none of its own."""
    if name not in PUBLISHED:
        return None
    first, *others = (build({"negatives": None, **options}) for options in PUBLISHED[name])
    for other in others:
        first = joined(first, other)
    return first


def joined(one: LabelSpace, other: LabelSpace) -> LabelSpace:
    """The names with the negatives of both; a word that both have keeps its first vector."""
    new = [place for place, word in enumerate(other.negatives) if word not in set(one.negatives)]
    return replace(
        one,
        negatives=(*one.negatives, *(other.negatives[place] for place in new)),
        ood_anchors=torch.cat([one.ood_anchors, other.ood_anchors[new]]),
        manifest=one.manifest | {f"also {key}": value for key, value in other.manifest.items()},
    )


VIEWS = 8  # per image; the published number is not known
LEAST_AREA = 0.55  # share of the image that a crop has at least


def random_view(encoder: Encoder, number: int) -> images.PartOfImage:
    """An encoder of one random crop of each image; the crop depends on the pixels and on `number` only."""
    return images.PartOfImage(
        encoder,
        f"view {number}, of {LEAST_AREA} to 1",
        lambda batch: encoder.images([random_crop(image, number) for image in batch]),
    )


def random_crop(image: Image, number: int) -> Image:
    """A crop of the image's own proportions, with LEAST_AREA to all of its area, anywhere in it."""
    draw = random.Random(zlib.crc32(image.pixels.tobytes()) + 2**32 * number)
    share = math.sqrt(draw.uniform(LEAST_AREA, 1))
    width, height = (max(1, round(share * side)) for side in image.pixels.size)
    left, top = draw.randint(0, image.pixels.width - width), draw.randint(0, image.pixels.height - height)
    return replace(image, pixels=image.pixels.crop((left, top, left + width, top + height)))
