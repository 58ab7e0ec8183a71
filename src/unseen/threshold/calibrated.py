"""A threshold from margins of images that are known to be known (split conformal prediction)."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from unseen.errors import SettingError
from unseen.threshold.base import check_recall
from unseen.threshold.fixed import Fixed


def calibrated(known_margins: Float[Tensor, " n"], *, recall: float = 0.95) -> Fixed:
    """Return the highest threshold that a new known image passes with probability at least `recall`.

    With n held-out margins of known images the threshold is the k-th smallest, k = floor((n + 1)(1 - recall)). This
    holds at every n, where the plain quantile is slightly too high.
    """
    check_recall(recall)
    n = len(known_margins)
    k = math.floor((n + 1) * (1 - recall) + 1e-9)  # the product of two decimals may fall just short of an integer
    if k < 1:
        least = math.ceil(1 / (1 - recall) - 1 - 1e-9)
        raise SettingError(
            f"expected at least {least} known margins for a recall of {recall:g}, got {n}; add known images"
        )
    return Fixed(float(known_margins.double().sort().values[k - 1]))
