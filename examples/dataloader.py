"""Batches of a torch DataLoader, as they are: pixels from 0 to 1, with labels that nothing here looks at.

python examples/dataloader.py
"""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import unseen
from unseen import demo


class Pictures(Dataset):
    """Images inside the package as (pixels [3, h, w], label)."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = Image.open(io.BytesIO(demo.load().thumbnails[index])).convert("RGB").resize((32, 32))
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255, -1


def main(encoder: str | Path = "offline", everyday: int = 1_500) -> None:
    """Print how many images of each batch are known."""
    model = unseen.load_encoder(encoder)
    space = unseen.LabelSpace.build(["cat", "dog"], model, everyday=everyday)
    session = unseen.Session(space, encoder=model)
    for batch in DataLoader(Pictures(), batch_size=16):
        print(session.observe(batch))


if __name__ == "__main__":
    main()
