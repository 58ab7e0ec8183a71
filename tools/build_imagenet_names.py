"""Build the names of the 1,000 ImageNet classes in the package from two packages of the Python index.

pip download --no-deps open_clip_torch==2.32.0 timm==1.0.15
python tools/build_imagenet_names.py open_clip_torch-2.32.0-py3-none-any.whl timm-1.0.15-py3-none-any.whl

open_clip (MIT) has CLIP's cleaned names in class order, timm (Apache 2.0) the WordNet ids and lemmas. Two names stand
twice in CLIP's list; the class whose first lemma is another word takes that word, because names must be distinct.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import zipfile
from collections import Counter
from pathlib import Path

SHA256 = {
    "open_clip": "80b35b43e37afc2b6173aa5ab0ad68744ab3a3211e624f72dfe743a162707637",
    "timm": "5a3dc460c24e322ecc7fd1f3e3eb112423ddee320cb059cc1956fbc9731748ef",
}
FOLDER = Path(__file__).parents[1] / "src/unseen/suites"


def clip_names(wheel: zipfile.ZipFile) -> tuple[str, ...]:
    """CLIP's names in class order."""
    module = ast.parse(wheel.read("open_clip/zero_shot_metadata.py"))
    values = {node.targets[0].id: node.value for node in module.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    names: tuple[str, ...] = ast.literal_eval(values["IMAGENET_CLASSNAMES"])
    return names


def lemmas(wheel: zipfile.ZipFile) -> dict[str, str]:
    """The first lemma of each of the 1,000 WordNet ids, in class order."""
    ids = wheel.read("timm/data/_info/imagenet_synsets.txt").decode().split()
    lines = wheel.read("timm/data/_info/imagenet_synset_to_lemma.txt").decode().splitlines()
    first = {key: words.split(",")[0].strip() for key, words in (line.split("\t", 1) for line in lines)}
    return {key: first[key] for key in ids}


def distinct(names: tuple[str, ...], first: dict[str, str]) -> list[tuple[str, str]]:
    """(WordNet id, name), each name once."""
    count = Counter(names)
    pairs = zip(first.items(), names, strict=True)
    return [(key, lemma if count[name] > 1 and lemma != name else name) for (key, lemma), name in pairs]


def main() -> None:
    """Read both wheels, check them, write the names and the licence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("open_clip", type=Path)
    parser.add_argument("timm", type=Path)
    arguments = parser.parse_args()
    for name, expected in SHA256.items():
        found = hashlib.sha256(getattr(arguments, name).read_bytes()).hexdigest()
        if found != expected:
            parser.error(f"expected {name} with sha256 {expected}, got {found}; fetch the version named above")
    with zipfile.ZipFile(arguments.open_clip) as open_clip, zipfile.ZipFile(arguments.timm) as timm:
        rows = distinct(clip_names(open_clip), lemmas(timm))
        licence = next(name for name in open_clip.namelist() if name.endswith("LICENSE"))
        (FOLDER / "IMAGENET-NAMES-LICENSE.txt").write_bytes(open_clip.read(licence))
    (FOLDER / "imagenet_classes.txt").write_text("".join(f"{key} {name}\n" for key, name in rows))


if __name__ == "__main__":
    main()
