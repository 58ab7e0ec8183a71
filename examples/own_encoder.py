"""An encoder of your own: anything that gives unit vectors of images and of texts in one space. This one knows colours.

python examples/own_encoder.py
"""

import numpy as np
import torch
from PIL import ImageColor
from torch.nn.functional import normalize

import unseen


class ColourEncoder:
    """Images by their mean colour, texts by the colour that they name."""

    name, dim = "colour", 3
    fingerprint = "mean colour, first version"  # changes when vectors can no longer be compared with those of before

    def images(self, batch) -> torch.Tensor:
        """One unit vector per image; a batch holds `unseen.images.Image`, whose `pixels` are RGB."""
        return normalize(torch.tensor(np.array([np.asarray(image.pixels).mean((0, 1)) for image in batch])).float() + 1)

    def texts(self, prompts) -> torch.Tensor:
        return normalize(torch.tensor([ImageColor.getrgb(prompt) for prompt in prompts]).float() + 1)


def main() -> None:
    """Judge three plain pictures."""
    encoder = ColourEncoder()
    names, negatives = ("red", "green"), ("blue", "yellow", "magenta", "gray")
    space = unseen.LabelSpace(names, negatives, encoder.texts(names), encoder.texts(negatives))
    pictures = [np.full((32, 32, 3), colour, np.uint8) for colour in ((250, 5, 5), (5, 240, 9), (9, 5, 250))]
    for verdict in unseen.Session(space, encoder=encoder).observe(pictures):
        print(verdict.name or f"unknown, nearest: {verdict.nearest}")


if __name__ == "__main__":
    main()
