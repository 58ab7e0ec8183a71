"""Build the vectors of the vocabulary that the package has for the offline encoder; after every fit of its head.

python tools/build_offline_words.py --kept written.safetensors    # 32,000 words; goes on where it was
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from unseen.encoders.offline.encoder import OfflineEncoder
from unseen.encoders.offline.text import TextTower, WordTable
from unseen.labels.relatives import every_negative

BLOCK = 512


def main() -> None:
    """Encode what is missing, and write the table of all words that are encoded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, required=True, help="how words read: made, or continued")
    parser.add_argument("--most", type=int, default=BLOCK**2, help="words to encode before the table is written")
    args = parser.parse_args()
    tower = OfflineEncoder().text_tower
    written = load_file(args.kept) if args.kept.is_file() else {}
    words = list(dict.fromkeys(word.lower() for word in every_negative()))
    missing = [word for word in words if word not in written][: args.most]
    for start in range(0, len(missing), BLOCK):
        block = missing[start : start + BLOCK]
        written |= zip(block, tower.written(block).half().unbind(), strict=True)
        save_file(written, args.kept)
        print(f"{start + len(block):,} of {len(missing):,} words", flush=True)
    ready = [word for word in words if word in written]
    blocks = [vectors(tower, ready[start : start + BLOCK], written) for start in range(0, len(ready), BLOCK)]
    WordTable.of(ready, torch.cat(blocks)).save(tower.head)
    print(f"{len(ready):,} of {len(words):,} words")


def vectors(tower: TextTower, words: list[str], written: dict[str, Tensor]) -> Float[Tensor, "n d"]:
    """The vectors of words that have been read."""
    read = torch.stack([written[word] for word in words]).float()
    return tower.head(torch.cat([tower.said(words), read], dim=-1))


if __name__ == "__main__":
    main()
