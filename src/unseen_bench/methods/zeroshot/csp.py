"""CSP (NeurIPS 2024): NegLabel's score; what CSP brings is its label space."""

from dataclasses import dataclass
from typing import ClassVar

from unseen.detectors.neglabel import NegLabel


@dataclass(frozen=True, eq=False)
class CSP(NegLabel):
    """Score as NegLabel does, over a label space of CSP's prompts and miner (`unseen mine --miner csp`)."""

    name: ClassVar[str] = "csp"
    reduced: ClassVar[str] = "is NegLabel's score here: what CSP brings is its prompts and negatives"
