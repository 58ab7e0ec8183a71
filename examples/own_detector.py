"""A detector of your own, checked as ours are: it gets features and can receive no label.

python examples/own_detector.py
unseen detect photos/ --label cat --label dog --detector examples.own_detector:Contrast
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unseen import Session, demo
from unseen.detectors import Detector, DetectorOutput
from unseen_bench.checks import check_detector


@dataclass(frozen=True, eq=False)
class Contrast(Detector[None]):
    """Score an image by how much nearer its best known name is than its best negative."""

    name: ClassVar[str] = "contrast"
    needs_negatives: ClassVar[bool] = True

    def start(self) -> None:
        """The state before the first sample: it never learns."""

    def read(self, state: None, z: Tensor) -> DetectorOutput:
        known, negative = z @ self.labels.id_anchors.T, z @ self.labels.ood_anchors.T
        return DetectorOutput.frozen(100 * (known.amax(1) - negative.amax(1)), known.argmax(1))


def main() -> None:
    """Check it, and judge the images inside the package with it."""
    check_detector(detector := Contrast(demo.load().space))
    print(Session(detector).observe(demo.load().shuffled(0).z))


if __name__ == "__main__":
    main()
