"""Why an image got its verdict: the words and the earlier images that spoke for and against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from unseen.detectors import Detector
from unseen.errors import FeatureError
from unseen.features.inputs import KeyedFeatures, as_features
from unseen.odds import text_logits
from unseen.reservoir import KeptImages
from unseen.session import Session
from unseen.verdicts import Verdict

COUNT = 3  # names, negatives and images that are listed


@dataclass(frozen=True)
class WordShare:
    """A name or negative and its share of the softmax over all words, from the frozen text."""

    word: str
    share: float


@dataclass(frozen=True)
class SimilarImage:
    """An earlier image with what was decided about it."""

    key: str
    known: bool
    nearest: str
    cosine: float  # of the two vectors, each less the mean of the kept images


@dataclass(frozen=True)
class Explanation:
    """Why an image got its verdict."""

    key: str
    verdict: Verdict
    names: tuple[WordShare, ...]  # the nearest known names
    negatives: tuple[WordShare, ...]  # the negatives that speak most against it
    known_share: float  # of all known names together
    text_margin: float  # margin of the detector before its first image: the frozen text alone
    similar: tuple[SimilarImage, ...]  # the most similar images that the session has kept

    @property
    def learned_margin(self) -> float:
        """What the stream added to the margin."""
        return self.verdict.margin - self.text_margin

    def row(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        return asdict(self) | self.verdict._asdict() | {"learned_margin": self.learned_margin, "why": self.sentence()}

    def sentence(self) -> str:
        """The main reason in one sentence.

        >>> verdict = Verdict("unknown", None, -2.0, 0.1, "cat", 1.0)
        >>> words = (WordShare("cat", 0.12),), (WordShare("lorry", 0.6),)
        >>> print(Explanation("a.jpg", verdict, *words, 0.2, -1.0, ()).sentence())
        unknown, probably lorry (60 %): looks more like it than like any of your names (best: cat, 12 %)
        """
        parts = [self._words()]
        if self.similar:
            known = sum(image.known for image in self.similar)
            unknown = len(self.similar) - known
            count, kind = (known, "known") if known > unknown else (unknown, "unknown")
            though = "" if (kind == "unknown") == self.verdict.unknown else "though "
            were = f"{count} of the {len(self.similar)} most similar earlier images were {kind}"
            parts.append(though + (f"the most similar earlier image was {kind}" if len(self.similar) == 1 else were))
        return "; ".join(parts)

    @property
    def likely(self) -> WordShare | None:
        """What an image that is not known may be: a word is right about as often as its share says, few under 10 %."""
        first = next(iter(self.negatives), None)
        return first if first and first.share > 0.1 and not self.verdict.known else None

    def _words(self) -> str:
        """The verdict, what else the image may be, and how near it is to the names."""
        verdict, best, other = self.verdict, self.names[0], self.likely
        called = verdict.verdict
        if other:
            called += f", {'probably' if other.share > 0.5 else 'perhaps'} {other.word} ({percent(other.share)})"
        if not verdict.unknown:
            return f"{called}: looks like {verdict.name}, {verdict.margin - verdict.threshold:.1f} above the threshold"
        if other and other.share > best.share:
            than = f"than like any of your names (best: {best.word}, {percent(best.share)})"
            return f"{called}: looks more like it {than}"
        best_of = f"best: {best.word}, {percent(best.share)}; all together {percent(self.known_share)}"
        return f"{called}: looks like none of your names ({best_of})"

    def lines(self) -> list[str]:
        """The reasons as lines of text."""
        verdict, names, negatives = (
            self.verdict,
            *(", ".join(f"{one.word} {percent(one.share)}" for one in words) for words in (self.names, self.negatives)),
        )
        alike = ", ".join(
            f"{one.key} ({one.nearest if one.known else 'unknown'}, {one.cosine:.2f})" for one in self.similar
        )
        away = abs(verdict.margin - verdict.threshold)
        where = "above" if verdict.margin >= verdict.threshold else "below"
        return [
            f"{self.key}  {self.sentence()}",
            f"  margin      {verdict.margin:+.2f}, {away:.2f} {where} the threshold of {verdict.threshold:.2f}; "
            f"the text alone gives {self.text_margin:+.2f}, the stream added {self.learned_margin:+.2f}",
            f"  your names  {names}",
            f"  against it  {negatives or 'no negatives in this label space'}",
            f"  looks like  {alike or 'no earlier image is kept'}",
        ]


def explain(session: Session, z: Float[Tensor, " d"] | Any, *, key: str = "", count: int = COUNT) -> Explanation:
    """Why an image gets its verdict from a session as it is now; nothing is learned.

    `z` is the features of one image, or, where the session has an encoder, an image as `Session.observe` takes it.

    >>> from unseen import demo
    >>> explain(Session(demo.load().space), demo.load().z[2], key="a.jpg").verdict.name
    'bird'
    """
    row, keys = _one_row(session, z)
    key = key or next(iter(keys), "")
    detector, snapshot = session.detector, session.snapshot
    (verdict,) = session.score(row)
    frozen = detector.score(_start(detector), row)
    text = text_logits(detector.labels, row.to(detector.labels.id_anchors), tau=0.01)  # whatever the detector's own
    shares = torch.cat([text.known, text.negative], 1).softmax(1)[0].cpu()
    known, negative = shares.split([len(detector.labels.names), len(detector.labels.negatives)])
    return Explanation(
        key or f"#{int(snapshot.tally.seen) + 1}",
        verdict,
        top_shares(detector.labels.names, known, count),
        top_shares(detector.labels.negatives, negative, count),
        float(known.sum()),
        float(frozen.margin),
        similar_images(session.reservoir.images, row[0].cpu(), detector.labels.names, count, but=key),
    )


def _one_row(session: Session, value: Any) -> KeyedFeatures:
    """One image as a batch of one, with its key if it has one."""
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 1:
        return KeyedFeatures(torch.as_tensor(value).unsqueeze(0))
    found = as_features(value, session.encoder)
    if len(found.z) != 1:
        raise FeatureError(f"expected one image to explain, got {len(found.z)}; call explain for each")
    return found


_STARTS: WeakKeyDictionary[Detector[Any], Any] = WeakKeyDictionary()


def _start(detector: Detector[Any]) -> Any:
    """The state before the first image, made once: with many names it takes longer than the explanation."""
    if detector not in _STARTS:
        _STARTS[detector] = detector.start()
    return _STARTS[detector]


def top_shares(words: Sequence[str], shares: Float[Tensor, " n"], count: int) -> tuple[WordShare, ...]:
    """The words with the largest shares, the largest first."""
    top = shares.topk(min(count, len(shares)))
    return tuple(WordShare(words[i], share) for i, share in zip(top.indices.tolist(), top.values.tolist(), strict=True))


def similar_images(
    images: KeptImages, z: Float[Tensor, " d"], names: Sequence[str], count: int, *, but: str = ""
) -> tuple[SimilarImage, ...]:
    """The kept images that are most like an image, itself (by its key) left out."""
    if not len(images):
        return ()
    cosine = centred_cosines(images.features, images.mean, z.float())
    if but:
        cosine[[row for row, key in enumerate(images.names()) if key == but]] = -torch.inf
    top = cosine.topk(min(count, int(cosine.isfinite().sum())))
    found, called = images.select(top.indices), images.select(top.indices).names()
    return tuple(
        SimilarImage(key, is_known, names[label], round(value, 4))
        for key, is_known, label, value in zip(
            called, found.known.tolist(), found.label.tolist(), top.values.tolist(), strict=True
        )
    )


def centred_cosines(
    images: Float[Tensor, "n d"], mean: Float[Tensor, " d"], z: Float[Tensor, " d"]
) -> Float[Tensor, " n"]:
    """The cosine of each unit image with `z`, all less the mean image; raw cosines of images are all high."""
    along, common = (images @ torch.stack([z - mean, mean], 1)).unbind(1)
    norms = (1 - 2 * common + mean @ mean).clamp(min=1e-12).sqrt()  # |row - mean| of unit rows
    return (along - mean @ (z - mean)) / norms / (z - mean).norm().clamp(min=1e-6)


def percent(share: float) -> str:
    """A share in percent; one that rounds to 0 is called "under 1 %".

    >>> percent(0.004), percent(0.0), percent(0.6)
    ('under 1 %', '0 %', '60 %')
    """
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"
