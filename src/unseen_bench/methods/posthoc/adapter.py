"""Run a detector of pytorch-ood in the same harness: it scores logits or features, higher meaning more OOD."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from unseen.errors import SettingError
from unseen_bench.methods.posthoc.base import PostHoc


@dataclass(frozen=True, eq=False)
class PytorchOOD(PostHoc):
    """Wrap `theirs`, a detector of pytorch-ood made with None for its network.

    `on` says what it reads: "logits" of the head (`predict_logits`: MaxSoftmax, EnergyBased, GEN ...) or "features"
    (`predict_features`: Mahalanobis, KNN, ViM ...). What wants pixels or feature maps cannot run on features.
    """

    theirs: Any = None
    on: str = "features"

    name: ClassVar[str] = "pytorch-ood"

    def __post_init__(self) -> None:
        """Refuse what cannot be asked for scores of features or logits."""
        super().__post_init__()
        if self.on not in ("logits", "features"):
            raise SettingError(f"expected on='logits' or on='features', got {self.on!r}; see pytorch-ood's page of it")
        if not callable(getattr(self.theirs, f"predict_{self.on}", None)):
            raise SettingError(
                f"expected a pytorch-ood detector with predict_{self.on}(), got {type(self.theirs).__name__}; "
                "pass one made with None for its network, and on= as its page says"
            )

    def confidence(self, z: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
        return -getattr(self._fitted, f"predict_{self.on}")(self._input(z)).to(z)

    @cached_property
    def _fitted(self) -> Any:
        fit = getattr(self.theirs, f"fit_{self.on}", None)
        if callable(fit):
            fit(self._input(self.images.z), self.images.label)
        return self.theirs

    def _input(self, z: Tensor) -> Tensor:
        return (self.images.logits(z) if self.on == "logits" else z).float()  # its own tensors are float32
