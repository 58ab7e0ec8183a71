"""What methods that need ID images share: a linear head on the features, and the images it was fitted on."""

import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unseen.detectors.base import DetectorOutput, Frozen, unit
from unseen.errors import DataError, StateError, import_extra


class LabelledImages(NamedTuple):
    """Features of labelled images of the known classes, and the linear head fitted to them."""

    z: Float[Tensor, "n d"]
    label: Int[Tensor, " n"]
    weight: Float[Tensor, "K d"]
    bias: Float[Tensor, " K"]

    def logits(self, z: Float[Tensor, "T d"]) -> Float[Tensor, "T K"]:
        """The logits of the head."""
        return z @ self.weight.T + self.bias


@dataclass(frozen=True, eq=False)
class PostHoc(Frozen):
    """A method that scores by a head or by distances to images. Subclasses write `confidence`."""

    _images: LabelledImages | None = field(default=None, init=False, repr=False)

    carries: ClassVar[bool] = False  # fitted on images of the names

    @property
    def images(self) -> LabelledImages:
        """What the method was fitted on."""
        if self._images is None:
            raise StateError(f"expected {self.name!r} to be fitted on ID images, got none; use posthoc.fit()")
        return self._images

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """The score: higher means more likely known."""
        raise NotImplementedError

    def read(self, state: None, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block and name each sample by the head."""
        return DetectorOutput.frozen(self.confidence(z), self.images.logits(z).argmax(dim=1))


P = TypeVar("P", bound=PostHoc)


def fit(detector: P, z: Float[Tensor, "n d"], label: Int[Tensor, " n"]) -> P:
    """The detector fitted on labelled images of the known classes; `label` is the index of the known name."""
    z = unit(z, like=detector.labels.id_anchors)
    present = label.unique().tolist()
    if present != list(range(len(detector.labels.names))):
        raise DataError(
            f"expected images of all {len(detector.labels.names)} known names to fit {detector.name!r}, "
            f"got {len(present)}; add images or remove names"
        )
    copied = copy.copy(detector)
    weight, bias = _fit_head(ByValue(z), ByValue(label))
    object.__setattr__(copied, "_images", LabelledImages(z, label, weight.to(z), bias.to(z)))
    return copied


class ByValue:
    """A tensor that is equal to one with the same values, so that twelve methods share one fit."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __hash__(self) -> int:
        return hash((tuple(self.tensor.shape), float(self.tensor.double().sum())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and torch.equal(self.tensor, other.tensor)


@lru_cache(maxsize=2)
def _fit_head(z: ByValue, label: ByValue) -> tuple[Tensor, Tensor]:
    models = import_extra("sklearn.linear_model", "bench")
    # features are unit; CLIP's own linear probes use C = 0.3 on features of norm 10
    head = models.LogisticRegression(C=30.0, max_iter=200, tol=1e-3)
    head.fit(z.tensor.double().cpu().numpy(), label.tensor.cpu().numpy())
    weight, bias = torch.from_numpy(head.coef_), torch.from_numpy(head.intercept_)
    if len(weight) == 1:  # two classes: scikit-learn keeps the difference of the two rows
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    return weight, bias
