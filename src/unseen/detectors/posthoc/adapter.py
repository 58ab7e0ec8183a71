"""Run a detector of pytorch-ood in the same harness: it scores logits or features, higher meaning more OOD."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.detectors.posthoc.base import PostHoc
from unseen.errors import SettingError


@dataclass(frozen=True, eq=False)
class PytorchOOD(PostHoc):
    """Wrap `theirs`, an object with `fit_features(x, y)` and `predict_features(x)`.

    `on` says what x is for that detector: "logits" of the head (MaxSoftmax, EnergyBased, Entropy ...) or "features"
    (Mahalanobis, KNN, ViM ...). A detector that wants the network itself cannot run on features.
    """

    theirs: Any = None
    on: str = "features"

    name: ClassVar[str] = "pytorch-ood"

    def __post_init__(self) -> None:
        """Refuse what cannot be asked for scores of features."""
        super().__post_init__()
        if not callable(getattr(self.theirs, "predict_features", None)):
            raise SettingError(
                f"expected a pytorch-ood detector with predict_features(), got {type(self.theirs).__name__}; "
                "pass one made with model=None"
            )
        if self.on not in ("logits", "features"):
            raise SettingError(f"expected on='logits' or on='features', got {self.on!r}; see pytorch-ood's page of it")

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        """Return the negative of its outlier score."""
        return -self._fitted.predict_features(self._input(z)).to(z)

    @cached_property
    def _fitted(self) -> Any:
        if callable(getattr(self.theirs, "fit_features", None)):
            self.theirs.fit_features(self._input(self.images.z), self.images.label)
        return self.theirs

    def _input(self, z: Tensor) -> Tensor:
        return self.images.logits(z) if self.on == "logits" else z
