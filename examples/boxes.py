"""Boxes of a detector, as supervision holds them: which show none of your names?

python examples/boxes.py photos/ detections.json "golden retriever" espresso
"""

import sys
from pathlib import Path

import numpy as np
import supervision

import unseen


def main(photos: str, boxes: str, *names: str, encoder: str | Path = "offline", everyday: int = 1_500) -> None:
    """Print how many boxes of each photo are known, and keep those that are."""
    model = unseen.load_encoder(encoder)
    space = unseen.LabelSpace.build(names, model, everyday=everyday)
    session = unseen.Session(space, encoder=model)
    for path, _, found in supervision.DetectionDataset.from_coco(photos, boxes):
        regions = unseen.read_regions(path, found)
        verdicts = {image.path: one for image, one in zip(regions, session.observe(regions), strict=True)}
        words = [verdicts[row.path].verdict if row.path in verdicts else "skipped" for row in regions.rows]
        found.data["verdict"] = np.array(words)
        print(path, f"{len(found[found.data['verdict'] == 'known'])} of {len(found)} boxes known")


if __name__ == "__main__":
    main(*sys.argv[1:])
