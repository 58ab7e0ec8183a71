"""Every tenth frame of a video; consecutive frames with the same verdict become one line.

python examples/video.py clip.mp4 "golden retriever" espresso
"""

import sys
from itertools import groupby
from pathlib import Path

import unseen


def main(video: str, *names: str, encoder: str | Path = "offline", everyday: int = 1_500, stride: int = 10) -> None:
    """Print from which frame to which a name was seen, or something unknown."""
    model = unseen.load_encoder(encoder)
    space = unseen.LabelSpace.build(names, model, everyday=everyday)
    session = unseen.Session(space, encoder=model)
    seen = [
        (int(image.path.rpartition("#")[2]), verdict.name or "unknown")
        for batch in unseen.read_images(video, stride=stride)
        for image, verdict in zip(batch, session.observe(batch), strict=True)
    ]
    for name, frames in groupby(seen, key=lambda one: one[1]):
        numbers = [number for number, _ in frames]
        print(f"frames {numbers[0]} to {numbers[-1]}: {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
