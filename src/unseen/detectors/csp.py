"""CSP (NeurIPS 2024): NegLabel's score over 100 groups; what else CSP brings is its label space."""

from dataclasses import dataclass
from typing import ClassVar

from unseen.detectors.neglabel import NegLabel

PUBLISHED_GROUPS = 100


@dataclass(frozen=True, eq=False)
class CSP(NegLabel):
    """Score by the log-odds of the known names' mean share over random groups of negatives."""

    groups: int = PUBLISHED_GROUPS  # one per negative where there are fewer

    name: ClassVar[str] = "csp"

    def __post_init__(self) -> None:
        count = len(self.labels.negatives)
        if count < self.groups <= PUBLISHED_GROUPS:
            object.__setattr__(self, "groups", count)
        super().__post_init__()
