"""A session as scikit-learn's tools expect it: parameters, `fit`, `partial_fit`, `decision_function`, `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from unseen import detectors
from unseen.encoders import Encoder, load_encoder
from unseen.errors import import_extra
from unseen.labels import LabelSpace
from unseen.session import Session
from unseen.threshold import Adaptive

BaseEstimator: Any = import_extra("sklearn.base", "sklearn").BaseEstimator
check_is_fitted: Any = import_extra("sklearn.utils.validation", "sklearn").check_is_fitted


class UnknownDetector(BaseEstimator):  # type: ignore[misc]
    """Names of images, or `unknown`: fitted with names in place of examples, because nothing is trained.

    `fit` takes names or a `LabelSpace`; `partial_fit` learns from a stream without labels, `predict` never learns.
    X is what `Session.observe` takes: features, or images in any form where there is an encoder.

    >>> from unseen import demo
    >>> pack = demo.load()
    >>> estimator = UnknownDetector(encoder=None).fit(pack.space).partial_fit(pack.z.numpy())
    >>> len(estimator.predict(pack.z[:5].numpy()))
    5
    """

    def __init__(
        self,
        encoder: str | Path | Encoder | None = "offline",
        detector: str = "default",
        recall: float = Adaptive.recall,
        unknown: str = "unknown",
    ) -> None:
        self.encoder = encoder
        self.detector = detector
        self.recall = recall
        self.unknown = unknown

    def fit(self, X: Sequence[str] | LabelSpace, y: Any = None) -> Self:
        """Start a stream over names, with negatives mined for them, or over a label space; `y` is ignored."""
        encoder = load_encoder(self.encoder) if isinstance(self.encoder, str | Path) else self.encoder
        space = X if isinstance(X, LabelSpace) else LabelSpace.build(list(X), encoder)  # type: ignore[arg-type]
        self.classes_ = np.array([*space.names, self.unknown])
        self.session_ = Session(detectors.make(self.detector, space), Adaptive(self.recall), encoder=encoder)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples in arrival order; `y` is ignored: no detector can receive a label."""
        check_is_fitted(self)
        self.session_.observe(X)
        return self

    def decision_function(self, X: Any) -> np.ndarray[Any, Any]:
        """How far the margin of each sample lies above the threshold: at least 0 for a known one."""
        check_is_fitted(self)
        verdicts = self.session_.score(X)
        difference: np.ndarray[Any, Any] = (verdicts.margin - verdicts.threshold).numpy()
        return difference

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """The name of each sample, `unknown` for one that has none of the names."""
        check_is_fitted(self)
        return np.array([verdict.name or self.unknown for verdict in self.session_.score(X)])
