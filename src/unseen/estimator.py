"""A session as scikit-learn's tools expect it: parameters, `fit`, `predict`, `predict_proba`, `decision_function`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unseen import detectors
from unseen.encoders import Encoder, load_encoder
from unseen.errors import LabelError, import_extra
from unseen.features.inputs import as_features
from unseen.labels import Examples, LabelSpace, with_examples
from unseen.session import Session
from unseen.threshold import Adaptive
from unseen.threshold.calibrated import fewest_images
from unseen.zero_shot import name_shares

base: Any = import_extra("sklearn.base", "sklearn")
validation: Any = import_extra("sklearn.utils.validation", "sklearn")
multiclass: Any = import_extra("sklearn.utils.multiclass", "sklearn")

Array = np.ndarray[Any, Any]


class UnknownDetector(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc]
    """A classifier that may answer `unknown`: by names alone, by names and examples, or by labelled vectors alone.

    `names` are texts, with negatives mined for them, or a `LabelSpace`. X is what `Session.observe` takes: features, or
    images in any form where there is an encoder. `fit(X)` learns from a stream without labels, `fit(X, y)` from
    examples of the names. Without names, `fit(X, y)` takes the mean vector of each class for its text: any vectors do.
    `partial_fit` goes on with a stream; what judges learns nothing.

    >>> from unseen import demo
    >>> pack = demo.load()
    >>> estimator = UnknownDetector(names=pack.space, encoder=None).fit(pack.z.numpy())
    >>> estimator.predict(pack.z[1:4].numpy()).tolist(), estimator.predict_proba(pack.z[1:4].numpy()).shape
    (['bird', 'bird', 'bird'], (3, 7))
    """

    def __init__(
        self,
        names: Sequence[str] | LabelSpace | None = None,
        encoder: str | Path | Encoder | None = "offline",
        detector: str = "default",
        recall: float = Adaptive.recall,
        unknown: str = "unknown",
    ) -> None:
        self.names = names
        self.encoder = encoder
        self.detector = detector
        self.recall = recall
        self.unknown = unknown

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Start anew: learn from a stream, or from examples, or, without X, from the names alone."""
        encoder = None if self.names is None else self.encoder  # the vectors of whoever gives no names are their own
        self.encoder_ = load_encoder(encoder) if isinstance(encoder, str | Path) else encoder
        z = None if X is None else self._features(X, is_first=True)
        if z is not None and y is not None:
            y = validation.column_or_1d(y, warn=True)
            validation.check_consistent_length(z, y)
            validation.assert_all_finite(y, input_name="y")
            multiclass.check_classification_targets(y)
        space = self._space_of_classes(z, y) if self.names is None else self._space_of_names(z, y)
        detector = "mcm" if self.detector == "default" and not space.negatives else self.detector
        self.session_ = Session(detectors.make(detector, space), Adaptive(self.recall), encoder=self.encoder_)
        if z is not None and y is None:
            self.session_.observe(z)
            self.session_.rejudge(z)
        elif z is not None and self.names is None and len(z) >= fewest_images(self.recall):
            self.session_.calibrate(z, recall=self.recall, guarantee=True)
        return self

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Learn from samples in arrival order; the first call is `fit`.

        Later `y` is ignored, as `classes` always is: no detector can receive a label of its stream.
        """
        if not hasattr(self, "session_"):
            return self.fit(X, y)
        self.session_.observe(self._features(X))
        return self

    def decision_function(self, X: Any) -> Array:
        """How far the margin of each sample lies above the threshold: at least 0 for a known one."""
        verdicts = self._verdicts(X)[1]
        return (verdicts.margin - verdicts.threshold).numpy()

    def predict_proba(self, X: Any) -> Array:
        """The probability of each of `classes_`: that an image is known, shared among the names as by their text."""
        z, verdicts = self._verdicts(X)
        known = verdicts.p_known.double().unsqueeze(1)
        return torch.cat([known * name_shares(self.session_, z), 1 - known], 1).numpy()

    def predict(self, X: Any) -> Array:
        """The name of each sample, also where it is doubtful; `unknown` for one that has none of the names."""
        verdicts = self._verdicts(X)[1]
        return self.classes_[np.where(verdicts.unknown, len(self.classes_) - 1, verdicts.label)]

    def verdicts(self, X: Any) -> Array:
        """The verdict on each sample in a word: known, doubtful or unknown."""
        return np.array(self._verdicts(X)[1].verdict)

    def _verdicts(self, X: Any) -> Any:
        validation.check_is_fitted(self)
        z = self._features(X)
        return z, self.session_.score(z)

    def _features(self, X: Any, *, is_first: bool = False) -> Tensor:
        """Unit vectors of the samples; those that were given as vectors have the width of the first ones."""
        if self.encoder_ is not None and not (isinstance(X, np.ndarray | Tensor) and X.ndim == 2):
            return as_features(X, self.encoder_).z
        z = validation.validate_data(self, X, reset=is_first, dtype=np.float32, order="C")
        return normalize(torch.from_numpy(z + np.float32(0)), dim=1)

    def _space_of_names(self, z: Tensor | None, y: Any) -> LabelSpace:
        """The label space of the names, moved by examples where there are some."""
        given: Any = self.names
        space = given if isinstance(given, LabelSpace) else LabelSpace.build(list(given), self.encoder_)  # type: ignore[arg-type]
        self.classes_ = np.array([*space.names, self.unknown])
        if z is None or y is None:
            return space
        place = {name: index for index, name in enumerate(space.names)}
        named = [str(name) for name in y]
        rows = torch.tensor([name != self.unknown for name in named])
        if foreign := sorted({name for name in named if name != self.unknown} - place.keys()):
            raise LabelError(f"expected y with names out of {', '.join(space.names)}, got {', '.join(foreign[:3])}")
        label = torch.tensor([place.get(name, 0) for name in named])
        return with_examples(space, Examples(z[rows], label[rows]))

    def _space_of_classes(self, z: Tensor | None, y: Any) -> LabelSpace:
        """The label space of the means of classes; among numbers, the class of the unknown is one below them all."""
        if z is None or y is None:
            raise LabelError(
                "expected names, or X and y to take classes from, got neither: the estimator requires y to be passed, "
                "but the target y is None; pass UnknownDetector(names=[...])"
            )
        classes, label = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise LabelError(f"expected y with at least two classes, got 1 class, {classes[0]!r}; pass names instead")
        is_numeric = np.issubdtype(classes.dtype, np.number) or classes.dtype == bool
        unknown = min(0, classes.min()) - 1 if is_numeric else self.unknown
        self.classes_ = np.array([*classes, unknown])
        means = torch.zeros(len(classes), z.shape[1]).index_add_(0, torch.from_numpy(label), z)
        return LabelSpace(tuple(map(str, classes)), (), normalize(means, dim=1), z.new_empty(0, z.shape[1]))

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: labels are needed where there are no names."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.names is None
        return tags
