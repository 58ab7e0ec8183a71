"""A stream in progress: a detector, a threshold rule, and one snapshot that is swapped whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen import checkpoint, detectors, threshold
from unseen.detectors import Detector, DetectorOutput
from unseen.encoders import Encoder
from unseen.errors import SettingError
from unseen.features.inputs import KeyedFeatures, as_features
from unseen.labels import LabelSpace
from unseen.reservoir import UNKNOWN, Reservoir
from unseen.snapshot import Snapshot, Tally, ToldImages, until_look
from unseen.threshold import Adaptive, Calibrated, Calibration, RecallInterval, ThresholdRule, calibration
from unseen.threshold.calibrated import followed, odd_images, stream_of
from unseen.verdicts import Verdicts


class Session:
    """Hold the state of one stream. One thread may observe; any number may score meanwhile and see whole snapshots.

    >>> from unseen import Session, demo
    >>> pack = demo.load()
    >>> session = Session(pack.space)                # the recommended detector, an adaptive threshold
    >>> verdicts = session.observe(pack.z[:20])  # features here; with `encoder=` images in any form
    >>> verdicts[2].name
    'bird'
    >>> session
    Session(pooled, LabelSpace(6 names + 2003 negatives, d=512, fingerprint 1ef3091f), seen=20)
    """

    def __init__(
        self,
        detector: Detector[Any] | LabelSpace,
        rule: ThresholdRule[Any] | None = None,
        *,
        keep: int = UNKNOWN,
        encoder: Encoder | None = None,
    ) -> None:
        """Start a stream; of its unknown images at most `keep` are kept for `unseen.discover`.

        A label space alone gets the recommended detector. With an encoder, `observe` and `score` take images too.
        Examples that the label space spares tell an adaptive rule where known images lie.
        """
        self.encoder, self.detector = encoder, detectors.of(detector)
        self._space_at: tuple[Path, str] | None = None  # where the label space was last written, and which
        rule = (rule or Adaptive()).for_detector(self.detector.labels, in_nats=self.detector.in_nats)
        # one pair, because calibration replaces both while others score
        self._live = rule, Snapshot(self.detector.start(), rule.start(), Tally.start())
        self.reservoir = Reservoir.empty(self.detector.labels.dim, unknown=keep)
        self.told_apart = ToldImages.none(self.detector.labels.dim)  # what calibration and `tell` brought
        self.look_at_told()

    def __repr__(self) -> str:
        return f"Session({self.detector.name}, {self.detector.labels!r}, seen={int(self.snapshot.tally.seen)})"

    @property
    def rule(self) -> ThresholdRule[Any]:
        """What sets the threshold."""
        return self._live[0]

    @property
    def snapshot(self) -> Snapshot:
        """Everything learned so far."""
        return self._live[1]

    @property
    def threshold(self) -> float:
        """The margin from which a sample is now called known."""
        return self.rule.threshold_of(self.snapshot.threshold)

    @property
    def recall_interval(self) -> RecallInterval | None:
        """What share of the known images the threshold keeps, in nine streams of ten; None where unknown.

        >>> from unseen import Session, demo
        >>> session = Session(demo.load().space)
        >>> [f"{100 * end:.0f} %" for end in session.recall_interval]  # before the first image
        ['67 %', '100 %']
        """
        return self.rule.recall_interval(self.snapshot.threshold)

    @property
    def is_warming(self) -> bool:
        """Whether too few samples have been seen for the threshold to be reliable."""
        return self.rule.is_warming(self.snapshot.threshold)

    def observe(self, z: Float[Tensor, "T d"] | Any, keys: Sequence[str] = ()) -> Verdicts:
        """Learn from features in arrival order and return a verdict for each; `keys` is what kept images are called.

        Features are a tensor, an array or a list of vectors; with an encoder, images in any form that
        `images.inputs.as_images` takes.

        >>> from unseen import demo
        >>> session = Session(demo.load().space)
        >>> verdicts = session.observe(demo.load().z[:3], keys=["a.jpg", "b.jpg", "c.jpg"])
        >>> [verdict.nearest for verdict in verdicts], int(session.snapshot.tally.seen)
        (['bird', 'bird', 'bird'], 3)
        """
        z, names = self._features(z)
        parts: list[Verdicts] = []
        keys, start, count = keys or names, 0, z.shape[0]
        if count > self.until_look:  # in several parts: what is refused must not be learned in part
            self.detector.check_features(z)
        while start < count or not parts:
            stop, seen = min(count, start + self.until_look), int(self.snapshot.tally.seen)
            some = z[start:stop]
            parts.append(self.learn(*self.detector.observe(self.snapshot.detector, some)))
            self.reservoir = self.reservoir.after(some, parts[-1], seen, keys[start:stop])
            start = stop
        return parts[0] if len(parts) == 1 else Verdicts.joined(parts)

    def learn(self, output: DetectorOutput, state: Any) -> Verdicts:
        """The verdicts on samples that the detector has observed, at most `until_look` of them.

        `state` is that of the detector after them. Where the last one completes the count, what was told is looked at.
        """
        rule, before = self._live
        is_due = output.score.shape[0] == self.until_look
        host = output.cpu()  # verdicts are for the host
        decisions, margins = rule.learn(before.threshold, host.margin)
        verdicts = Verdicts.of(self.detector.labels, host, decisions)
        self._live = rule, Snapshot(state, margins, before.tally.after(verdicts))
        if is_due:
            self.look_at_told()
        return verdicts

    def score(self, z: Float[Tensor, "T d"] | Any) -> Verdicts:
        """Verdicts without learning anything; `observe` says what `z` may be.

        >>> from unseen import demo
        >>> session = Session(demo.load().space)
        >>> len(session.score(demo.load().z[:3])), int(session.snapshot.tally.seen)
        (3, 0)
        """
        z, _ = self._features(z)
        rule, snapshot = self._live
        output = self.detector.score(snapshot.detector, z).cpu()
        return Verdicts.of(self.detector.labels, output, rule.read(snapshot.threshold, output.margin))

    def _features(self, value: Any) -> KeyedFeatures:
        z, keys = as_features(value, self.encoder, most_dims=3 if self.detector.parts else 2)
        return KeyedFeatures(z if isinstance(value, Tensor) else z.to(self.detector.labels.id_anchors.device), keys)

    def rejudge(self, z: Float[Tensor, "T d"], *, since: Snapshot | None = None) -> Verdicts:
        """Verdicts on images that were observed, by everything learned: what a folder gets at its end.

        `z` are the images in their order, `since` the snapshot before the first of them (the start of the stream). The
        threshold is set by the margins that they have now, and stays.

        >>> from unseen import demo
        >>> session = Session(demo.load().space)
        >>> early = session.observe(demo.load().z[:40])
        >>> late = session.rejudge(demo.load().z[:40])
        >>> len(late), bool((late.threshold == session.threshold).all()), int(session.snapshot.tally.seen)
        (40, True, 40)
        """
        z, _ = self._features(z)
        self.look_at_told()
        rule, snapshot = self._live
        output = self.detector.score(snapshot.detector, z).cpu()
        before: Any = stream_of(since and since.threshold) or stream_of(rule.start())
        state = rule.judged_again(snapshot.threshold, before, output.margin)
        verdicts = Verdicts.of(self.detector.labels, output, rule.read(state, output.margin))
        tally = since.tally if since else Tally.start()
        self._live = rule, snapshot._replace(threshold=state, tally=snapshot.tally.rejudged(tally, verdicts))
        self.reservoir = self.reservoir.rejudged(verdicts, int(tally.seen))
        return verdicts

    def calibrate(
        self,
        z: Float[Tensor, "n d"] | Any,
        *,
        recall: float | None = None,
        guarantee: bool = False,
        keep_odd: bool = False,
    ) -> Calibration:
        """Tell the threshold of images that are known to be known; the detector learns nothing from them.

        They are looked at again whenever the stream has grown by an eighth. One that lies far below the others is left
        out, unless `keep_odd`. With `guarantee` a new known image passes with probability at least `recall`, whatever
        that costs, as long as the detector does not move its margins: see `threshold.Calibrated`. A detector whose
        margins are not in nats needs it.

        >>> from unseen import demo
        >>> session = Session(demo.load().space)
        >>> known = demo.load().z[:40]             # images of which you know that they show your names
        >>> found = session.calibrate(known)
        >>> found.images, found.threshold == session.threshold
        (40, True)
        >>> session.calibrate(known, recall=0.9, guarantee=True).images, session.rule.name
        (40, 'calibrated')
        """
        z, _ = self._features(z)
        (rule, snapshot), labels = self._live, self.detector.labels
        recall = recall if recall is not None else getattr(rule, "recall", Adaptive.recall)
        margins = self.detector.score(snapshot.detector, z).cpu().margin
        if guarantee or not self.detector.in_nats:
            rule = Calibrated(recall, len(margins)).for_detector(labels, in_nats=self.detector.in_nats)
            state = rule.calibrated_state(snapshot.threshold, margins, at=int(snapshot.tally.seen))
            self._live = rule, snapshot._replace(threshold=state)
            return calibration(margins, recall=recall)
        rule, state = followed(rule, snapshot.threshold, recall, labels)
        self._live = rule, snapshot._replace(threshold=state)
        odd = odd_images(margins)[: 0 if keep_odd else None]
        kept = torch.ones(len(z), dtype=torch.bool).index_fill(0, odd, False)
        self.told_apart = self.told_apart.and_photos(z[kept.to(z.device)])
        self.look_at_told()
        low, high = self.recall_interval or RecallInterval(0.0, 1.0)
        return Calibration(int(kept.sum()), recall, self.threshold, low, high, tuple(odd.tolist()))

    def tell(self, z: Float[Tensor, "n d"] | Any, known: Bool[Tensor, " n"] | Sequence[bool]) -> None:
        """Correct or confirm verdicts: tell the threshold which images are known; the detector learns nothing.

        >>> from unseen import demo
        >>> session = Session(demo.load().space)
        >>> session.tell(demo.load().z[:10], [False] * 10)
        >>> session.threshold > Session(demo.load().space).threshold
        True
        """
        if not self.detector.in_nats:
            raise SettingError(
                f"expected a detector whose margins are in nats, got {self.detector.name!r}; use pooled, or calibrate"
            )
        self.told_apart = self.told_apart.and_corrected(self._features(z).z, torch.as_tensor(known, dtype=torch.bool))
        self.look_at_told()

    @property
    def told(self) -> ToldImages:
        """All images whose side is known: spared examples, calibration photos and corrected verdicts."""
        labels = self.detector.labels
        told = self.told_apart if labels.spared is None else self.told_apart.and_photos(labels.spared.z)
        return told.and_corrected(*self.reservoir.corrected(labels.names))

    @property
    def _may_be_told(self) -> bool:
        """Whether the side of any image is told: a look at less than `told` costs."""
        return bool(len(self.told_apart.z) or self.reservoir.journal or self.detector.labels.spared is not None)

    def look_at_told(self) -> None:
        """Set the threshold anew by the margins that images now have whose side is known, or was before an undo."""
        (rule, snapshot), in_nats = self._live, self.detector.in_nats
        if in_nats and isinstance(rule, Adaptive) and (self._may_be_told or snapshot.threshold.told.images):
            told = self.told
            z = told.z.to(self.detector.labels.id_anchors)
            margin = self.detector.score(snapshot.detector, z).cpu().margin if len(z) else torch.zeros(0)
            state = rule.told(snapshot.threshold, *told.by_kind(margin))
            self._live = rule, snapshot._replace(threshold=state)

    @property
    def until_look(self) -> int:
        """After how many images what was told is looked at again: a fixed count, whatever the calls."""
        is_used = isinstance(self.rule, Adaptive) and self._may_be_told and len(self.told.z)
        return until_look(int(self.snapshot.tally.seen)) if is_used else sys.maxsize

    def at(
        self,
        snapshot: Snapshot | None = None,
        *,
        detector: Detector[Any] | None = None,
        reservoir: Reservoir | None = None,
        told: ToldImages | None = None,
    ) -> Session:
        """Another session, with the parts that are given: a detector only where states of both are the same."""
        session = copy(self)
        session.detector, session._live = detector or self.detector, (self.rule, snapshot or self.snapshot)
        session.reservoir = self.reservoir if reservoir is None else reservoir
        session.told_apart = self.told_apart if told is None else told
        return session

    def save(self, path: str | Path, *, with_space: bool = True, **extra: Any) -> None:
        """Write the state as one safetensors file, whole or not at all; `extra` is kept in its header.

        The label space is written beside it, `state.space.safetensors`, unless it lies there or `with_space` is False.

        >>> import tempfile
        >>> from unseen import demo
        >>> session, file = Session(demo.load().space), Path(tempfile.mkdtemp()) / "state.safetensors"
        >>> _ = session.observe(demo.load().z[:5])
        >>> session.save(file)
        >>> int(Session.load(file).snapshot.tally.seen)
        5
        """
        labels, beside = self.detector.labels, checkpoint.space_path(Path(path))
        if with_space and self._space_at != (beside, labels.fingerprint):
            labels.save(beside)
            self._space_at = beside, labels.fingerprint
        checkpoint.save(path, self._states(), {**self.identity, **extra})

    def to_bytes(self) -> bytes:
        """What `save` writes, without the label space."""
        return checkpoint.to_bytes(self._states(), self.identity)

    def _states(self) -> dict[str, Any]:
        return {**self.snapshot._asdict(), "reservoir": self.reservoir.tensors(), "told": self.told_apart}

    @classmethod
    def load(
        cls,
        source: str | Path | bytes,
        labels: LabelSpace | None = None,
        *,
        detector: Detector[Any] | None = None,
        encoder: Encoder | None = None,
    ) -> Session:
        """Go on from a saved state; refuse one that belongs to another label space or detector.

        Without `labels`, the label space is the one beside the file. A registered detector is rebuilt from the file;
        pass `detector` for one of your own.

        >>> from unseen import demo
        >>> state = Session(demo.load().space).to_bytes()        # or the path of what `save` wrote
        >>> Session.load(state, demo.load().space).threshold == Session(demo.load().space).threshold
        True
        """
        found = checkpoint.load(source)
        labels, identity = labels if labels is not None else checkpoint.find_space(source), found.identity
        detector = detector or detectors.make(identity["detector"], labels, **identity["settings"])
        rule = threshold.make(identity["threshold"], **identity["threshold_settings"])
        return cls(detector, rule, encoder=encoder).resumed(found)

    def resumed(self, found: checkpoint.Checkpoint) -> Session:
        """A session that goes on from a checkpoint; refuse one of another identity."""
        checkpoint.check_identity(self.identity, found.identity)
        snapshot = self.snapshot.restored(found)
        kept, told = found.states.get("reservoir"), found.states.get("told")
        none = replace(self.reservoir, since=int(snapshot.tally.seen))  # an old state kept no image
        reservoir = Reservoir.of_tensors(kept) if kept else none
        return self.at(snapshot, reservoir=reservoir, told=ToldImages(**told) if told else None)

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must agree on to be this session's."""
        return {
            "labels": self.detector.labels.fingerprint,
            "detector": self.detector.name,
            "settings": self.detector.settings,
            "threshold": self.rule.name,
            "threshold_settings": self.rule.settings,
        }
