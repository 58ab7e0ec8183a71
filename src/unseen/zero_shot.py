"""Names in, a function of images out: the habit of a zero-shot pipeline of transformers, with "unknown"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from unseen import detectors
from unseen.encoders import Encoder, load_encoder
from unseen.images.inputs import as_images, is_picture, split
from unseen.labels import LabelSpace
from unseen.odds import text_logits
from unseen.session import Session
from unseen.verdicts import Verdict

TAU = 0.01  # CLIP's own temperature, by which the text shares a known image among the names
BATCH = 32  # images of a generator that are encoded at once
UNKNOWN = "unknown"

Labels = list[dict[str, Any]]  # of one image: "label" and "score" of each name and of "unknown", the verdict first


def pipeline(
    names: Sequence[str] | LabelSpace,
    *,
    encoder: str | Path | Encoder = "offline",
    detector: str = detectors.DEFAULT,
    learn: bool = True,
) -> Pipeline:
    """A function that says of images which of the names they show, or that they are unknown.

    Args:
        names: what is known: texts, with negatives mined for them, or a label space.
        encoder: what turns images and names into vectors; `load_encoder` says which there are.
        detector: what scores, by name.
        learn: whether what is judged also teaches; verdicts get better with use.

    >>> classify = pipeline(["cat", "dog"])                     # doctest: +SKIP
    >>> classify("a.jpg")                                       # doctest: +SKIP
    [{'label': 'cat', 'score': 0.96}, {'label': 'unknown', 'score': 0.04}, {'label': 'dog', 'score': 0.0}]
    """
    model = load_encoder(encoder) if isinstance(encoder, str | Path) else encoder
    space = names if isinstance(names, LabelSpace) else LabelSpace.build(list(names), model)
    return Pipeline(Session(detectors.make(detector, space), encoder=model), model, learn=learn)


class Pipeline:
    """A session that is called with images: one, a list, or a generator of them, in any form that a session takes."""

    def __init__(self, session: Session, encoder: Encoder, *, learn: bool = True) -> None:
        self.session = session
        self.encoder = encoder
        self.learn = learn

    def __call__(self, images: Any) -> Any:
        """The labels of an image, of each image of a list, or, as they come, of each of a generator."""
        if isinstance(images, Iterator):
            return self._as_they_come(images)
        found = self._labels(images)
        return found[0] if is_picture(images) else found

    def _as_they_come(self, images: Iterator[Any]) -> Iterator[Labels]:
        while some := list(islice(images, BATCH)):
            yield from self._labels(some)

    def _labels(self, images: Any) -> list[Labels]:
        z = self.encoder.images(as_images(list(split(images))))
        shares = name_shares(self.session, z)
        verdicts = (self.session.observe if self.learn else self.session.score)(z)
        return [self._ranked(*row) for row in zip(verdicts, shares.tolist(), strict=True)]

    def _ranked(self, verdict: Verdict, shares: list[float]) -> Labels:
        scores = {
            name: verdict.p_known * share
            for name, share in zip(self.session.detector.labels.names, shares, strict=True)
        }
        scores[UNKNOWN] = 1 - verdict.p_known
        first = verdict.name or UNKNOWN
        order = sorted(scores, key=lambda name: (name != first, -scores[name]))
        return [{"label": name, "score": scores[name]} for name in order]


def name_shares(session: Session, z: Float[Tensor, "T d"]) -> Float[Tensor, "T K"]:
    """How the text shares each image, if it is known, among the names; a row sums to 1."""
    labels = session.detector.labels
    return text_logits(labels, z.to(labels.id_anchors), tau=TAU).known.double().softmax(1).cpu()
