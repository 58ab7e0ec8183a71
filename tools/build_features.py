"""The stored features that suites, `make paper`, `make results` and the pages of docs read, from public images on disk.

    python tools/build_features.py DATA -o ../shared/clip-b16 [--encoder ViT-B/16]

DATA holds what OpenOOD's download scripts leave (images_largescale/imagenet_1k/val with its lists, images_classic/ with
cifar10, cifar100, mnist, texture and tin), and beside it flowers102/ (Oxford) and intel_scenes/ (Intel Image
Classification, its test part), a folder per class each. What is not there is left out by name.

Ours differ from a reader's in this: five images of each ImageNet class were drawn by somebody else; the image tower has
weights of int8; 253 other names come from the class lists of COCO-Stuff, ADE20K, Pascal Context and Cityscapes, where a
reader gets as many everyday words; the 10,499 negatives of imagenet1k-surrogate are regressed from a sentence encoder,
where a reader gets CLIP's own text of NegLabel's words; and which ImageNet classes are near is drawn anew.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from unseen.encoders import Encoder, load_encoder
from unseen.errors import DataError
from unseen.images import Entry, Image, find_images
from unseen.labels.relatives import everyday_words
from unseen_bench import suites
from unseen_bench.mining import mine
from unseen_bench.suites.images import known_entries

FOLDERS = {  # a folder per class, looked for in this order
    "textures10": ("images_classic/texture", "dtd/images", "Textures"),
    "intel_scenes": ("intel_scenes",),
    "flowers102": ("flowers102",),
    "cifar10": ("images_classic/cifar10/test",),
    "cifar100": ("images_classic/cifar100/test",),
    "mnist": ("images_classic/mnist/test",),
    "tin_val": ("images_classic/tin/val", "images_classic/tin/test"),
}
MOST = {"textures10": 10, "imagenet_val5": 1000}  # classes, the first by name
EACH = {"imagenet_val5": 5}  # images of a class, the first by name
NEAR, OTHERS, SURROGATES = 300, 253, 10_499
BATCH = 64


def main() -> None:
    """Write every file that can be made of what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--encoder", default="ViT-B/16")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    encoder = load_encoder(asked.encoder)
    found = {"imagenet_val5": imagenet(asked.data)}
    found |= {name: by_folder(asked.data, folders) for name, folders in FOLDERS.items()}
    for name, classes in found.items():
        if classes:
            write_images(asked.output, name, classes, encoder)
        else:
            print(f"images-{name}: not found under {asked.data}, left out", file=sys.stderr)
    write_texts(asked.output, encoder)
    write_lists(asked.output, list(found["tin_val"]))


def imagenet(data: Path) -> dict[str, list[Entry]]:
    """The validation images by class index."""
    row, classes = suites.read("imagenet")["known"], defaultdict(list)
    try:
        entries = known_entries(row, suites.imagenet_classes(), data)
    except DataError:
        return {}
    for entry, place in sorted(entries, key=lambda one: (one[1], one[0].path)):
        classes[str(place)].append(entry)
    return classes


def by_folder(data: Path, folders: Sequence[str]) -> dict[str, list[Entry]]:
    """The images by the name of the folder that each lies in."""
    where = next((data / folder for folder in folders if (data / folder).is_dir()), None)
    classes: dict[str, list[Entry]] = defaultdict(list)
    for entry in find_images(where) if where else ():
        classes[Path(entry.path).parent.name].append(entry)
    return dict(sorted(classes.items()))


def write_images(output: Path, name: str, classes: Mapping[str, Sequence[Entry]], encoder: Encoder) -> None:
    """Encode the wanted images of a set and write them with the index of each one's class."""
    wanted = list(classes)[: MOST.get(name)]
    chosen = [(entry, place) for place, key in enumerate(wanted) for entry in classes[key][: EACH.get(name)]]
    z, labels = [], []
    for start in range(0, len(chosen), BATCH):
        rows = [(entry.read(), place) for entry, place in chosen[start : start + BATCH]]
        images, places = zip(*((row, place) for row, place in rows if isinstance(row, Image)), strict=True)
        z.append(encoder.images(images).cpu())
        labels += places
    tensors = {"features": torch.cat(z), "labels": torch.tensor(labels, dtype=torch.int32)}
    write(output, f"images-{name}", tensors, encoder, classes=wanted)
    print(f"images-{name}: {len(labels):,} images of {len(wanted):,} classes")


def write_texts(output: Path, encoder: Encoder) -> None:
    """Encode the names of ImageNet, as many other everyday words as ours had other names, and NegLabel's negatives."""
    names, wnids = suites.imagenet_classes()
    others = [word for word in everyday_words() if word not in names][:OTHERS]
    for name, words, more in (("imagenet1k", names, {"wnids": wnids}), ("other-names", others, {})):
        z = encoder.texts([f"a photo of a {word}." for word in words]).cpu()
        write(output, f"text-{name}", {"features": z}, encoder, names=words, template="a photo of a {}.", **more)
    mined = mine(names, encoder, miner="neglabel", negatives=SURROGATES)
    own = {"names": mined.negatives, "template": mined.prompt}
    write(output, "text-surrogate-negatives", {"features": mined.ood_anchors}, encoder, **own)


def write(output: Path, name: str, tensors: dict[str, torch.Tensor], encoder: Encoder, **about: object) -> None:
    """Write a feature file: vectors in float16, what is said of them as JSON where it is no text."""
    tensors["features"] = tensors["features"].half().contiguous()
    text = {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}
    save_file(tensors, output / f"{name}.safetensors", metadata={**text, "encoder": encoder.name})


def write_lists(output: Path, tiny: Sequence[str]) -> None:
    """Write which classes are known (those of Tiny-ImageNet), near or negative; the draw is the same every time."""
    wnids = suites.imagenet_classes().keys
    known = [place for place, wnid in enumerate(wnids) if wnid in tiny]
    drawn = np.random.default_rng(0).permutation([place for place in range(len(wnids)) if place not in known])
    near, negative = np.split(drawn, [NEAR])
    lists = {"id_classes": known, "near_ood_classes": sorted(near.tolist())}
    lists |= {"negative_imagenet_classes": sorted(negative.tolist()), "negative_other_names": list(range(OTHERS))}
    (output / "suites.json").write_text(json.dumps({"imagenet200": lists}))


if __name__ == "__main__":
    main()
