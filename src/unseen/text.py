"""Scores from the frozen text: logits of the names, and the log-odds of Eq. 2 and 3."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from unseen.labels import LabelSpace
from unseen.odds import energy, logits, top


class TextLogits(NamedTuple):
    """Cosines of each sample to the text of each name, divided by a temperature."""

    known: Float[Tensor, "T K"]
    negative: Float[Tensor, "T L"]


def text_logits(labels: LabelSpace, z: Float[Tensor, "T d"], *, tau: float) -> TextLogits:
    """The logits of the known and of the negative names, in the dtype of `z`."""
    known, negative = (anchors.to(z.dtype) for anchors in (labels.id_anchors, labels.ood_anchors))
    return TextLogits(logits(z, known, tau=tau), logits(z, negative, tau=tau))


def mcm(text: TextLogits) -> Float[Tensor, " T"]:
    """The log-odds of the largest softmax probability over the known names (Eq. 2)."""
    return top(text.known).log_odds


def neglabel(text: TextLogits) -> Float[Tensor, " T"]:
    """The log-odds of the known names against the negative ones (Eq. 3)."""
    return energy(text.known) - energy(text.negative)
