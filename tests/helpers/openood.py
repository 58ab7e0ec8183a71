"""A few real photos per set where OpenOOD's download scripts and the sets' own archives put theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from unseen import demo
from unseen_bench.mining import Corpus, find_miner, synset_names

WORDNET_IDS = ("n01440764", "n01443537", "n01484850")  # the first three classes of ImageNet: labels 0, 1, 2
LISTED = {  # list in benchmark_imglist -> where its images lie, label
    "imagenet/test_ssb_hard.txt": ("images_largescale/ssb_hard/n01495493", -1),
    "imagenet/test_ninco.txt": ("images_largescale/ninco/amphiuma_means", -1),
    "imagenet/test_inaturalist.txt": ("images_largescale/inaturalist/images", -1),
    "imagenet/test_openimage_o.txt": ("images_largescale/openimage_o/images", -1),
    "imagenet/test_textures.txt": ("images_classic/texture/banded", -1),
    **{
        f"{known}/test_{name}.txt": (f"images_classic/{folder}", label)
        for known, sets in {
            "cifar10": {"cifar10": ("cifar10/test/dog", 5), "cifar100": ("cifar100/test/bed", -1)},
            "cifar100": {"cifar100": ("cifar100/test/bed", 5), "cifar10": ("cifar10/test/dog", -1)},
        }.items()
        for name, (folder, label) in {
            **sets,
            "tin": ("tin/test/n02124075", -1),
            "mnist": ("mnist/test", -1),
            "svhn": ("svhn/test/3", -1),
            "texture": ("texture/banded", -1),
            "places365": ("places365/airfield", -1),
        }.items()
    },
}
LOOSE = (  # what no list of OpenOOD names
    *("SUN/images", "Places/images", "intel_scenes/sea", "flowers102/1"),
    *(f"images_classic/tin/val/{wnid}" for wnid in WORDNET_IDS[:2]),
)
BY_CLASS = ("imagenet-a", "imagenet-r", "sketch")  # their archives have a folder per WordNet id


def write(root: Path, *, photos: int = 3) -> Path:
    """Write so many photos per set and list; ImageNet's validation images lie in one folder, as OpenOOD has them."""
    pictures = cycle(demo.load().thumbnails)
    flat = root / "images_largescale" / "imagenet_1k" / "val"
    for number, part in enumerate(("val", "test")):
        names = [f"ILSVRC2012_val_{10 * number + place:08d}.JPEG" for place in range(photos)]
        lines = [f"imagenet_1k/val/{name} {place % 3}\n" for place, name in enumerate(names)]
        _put(flat, names, pictures)
        _list(root, f"imagenet/{part}_imagenet.txt", lines)
    names = [f"{place}.jpg" for place in range(photos)]
    for path, (folder, label) in LISTED.items():
        inside = folder.partition("/")[2]
        _put(root / folder, names, pictures)
        _list(root, path, [f"{inside}/{name} {label}\n" for name in names])
    for folder in (*LOOSE, *(f"{one}/{wnid}" for one in BY_CLASS for wnid in WORDNET_IDS)):
        _put(root / folder, names, pictures)
    return root


def mine_few_words(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let negatives come from a small part of WordNet, and be kept in this folder: all of it takes a minute."""
    patch.setenv("UNSEEN_CACHE", str(folder / "cache"))
    few = Corpus("few", {name: words[::80] for name, words in synset_names().lists.items()})
    miner = replace(find_miner("neglabel"), corpus=lambda: few)
    patch.setattr("unseen_bench.mining.mining.find_miner", lambda name: miner)


def _put(folder: Path, names: list[str], pictures: Iterator[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in zip(names, pictures, strict=False):
        (folder / name).write_bytes(picture)


def _list(root: Path, path: str, lines: list[str]) -> None:
    file = root / "benchmark_imglist" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(lines))
