"""A stream in progress: a detector, a threshold rule, and one snapshot that is swapped whole."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unseen import checkpoint, detectors, threshold
from unseen.detectors import Detector, DetectorOutput
from unseen.detectors.state import flatten
from unseen.encoders import Encoder
from unseen.errors import SettingError, StateError
from unseen.features.inputs import KeyedFeatures, as_features
from unseen.labels import LabelSpace
from unseen.labels.examples import NUMBERS as EXAMPLES
from unseen.reservoir import UNKNOWN, Reservoir
from unseen.threshold import Adaptive, Calibrated, Calibration, RecallInterval, ThresholdRule, calibration
from unseen.threshold.adaptive import MarginHistory
from unseen.threshold.base import Corrected
from unseen.threshold.calibrated import CalibratedMargins, odd_images
from unseen.verdicts import Verdicts

FIRST_INTERVAL = 16  # images between two looks at what was told, up to 128; then a quarter to an eighth of the stream


class ToldImages(NamedTuple):
    """Images of which a person has said whether they are known: photos of the names, then corrected verdicts."""

    z: Float[Tensor, "n d"]
    known: Bool[Tensor, " n"]
    is_photo: Bool[Tensor, " n"]

    @classmethod
    def none(cls, dim: int) -> ToldImages:
        """No image of a width."""
        return cls(torch.zeros(0, dim), *(torch.zeros(0, dtype=torch.bool) for _ in range(2)))

    def and_photos(self, z: Float[Tensor, "m d"]) -> ToldImages:
        """These images, and photos of known names that are not among them: a calibration may be repeated."""
        if len(self.z) and len(z):
            z = z[(z.to(self.z) @ self.z.T).amax(1) < EXAMPLES.same_image]
        sure = torch.ones(len(z), dtype=torch.bool)
        return self._and(ToldImages(z, sure, sure))

    def and_corrected(self, z: Float[Tensor, "m d"], known: Bool[Tensor, " m"]) -> ToldImages:
        """These images, and some whose verdict is corrected."""
        return self._and(ToldImages(z, known, torch.zeros(len(z), dtype=torch.bool)))

    def _and(self, more: ToldImages) -> ToldImages:
        return ToldImages(*(torch.cat([a, b.detach().to(a)]) for a, b in zip(self, more, strict=True)))


class Tally(NamedTuple):
    """How many samples were observed, called known, and taught each side."""

    seen: Tensor
    known: Tensor
    taught_known: Tensor
    taught_unknown: Tensor


class Snapshot(NamedTuple):
    """Everything a session has learned, as one value."""

    detector: Any
    threshold: Any
    tally: Tally


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
        if isinstance(detector, LabelSpace):
            detector = detectors.make(detectors.DEFAULT, detector)
        if not isinstance(detector, Detector):
            raise SettingError(
                f"expected a LabelSpace or a detector, got {type(detector).__name__}; "
                "pass LabelSpace.build(names, encoder), or detectors.make(name, space)"
            )
        self.encoder = encoder
        self._detector = detector
        self._space_at: tuple[Path, str] | None = None  # where the label space was last written, and which
        rule = (rule or Adaptive()).for_detector(in_nats=detector.in_nats)
        zero = torch.zeros((), dtype=torch.int64)
        # one pair, because calibration replaces both while others score
        self._live = rule, Snapshot(detector.start(), rule.start(), Tally(zero, zero, zero, zero))
        self._reservoir = Reservoir.empty(detector.labels.dim, unknown=keep)
        self._told = ToldImages.none(detector.labels.dim)
        self.look_at_told()

    def __repr__(self) -> str:
        return f"Session({self.detector.name}, {self.detector.labels!r}, seen={int(self.snapshot.tally.seen)})"

    @property
    def detector(self) -> Detector[Any]:
        """What scores."""
        return self._detector

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
        ['77 %', '99 %']
        """
        return self.rule.recall_interval(self.snapshot.threshold)

    @property
    def is_warming(self) -> bool:
        """Whether too few samples have been seen for the threshold to be reliable."""
        return self.rule.is_warming(self.snapshot.threshold)

    @property
    def reservoir(self) -> Reservoir:
        """The images that are kept."""
        return self._reservoir

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
            self._reservoir = self._reservoir.after(some, parts[-1], seen, keys[start:stop])
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
        verdicts = Verdicts(self.detector.labels.names, host, decisions)
        self._live = rule, Snapshot(state, margins, _tally_after(before.tally, verdicts))
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
        return Verdicts(self.detector.labels.names, output, rule.read(snapshot.threshold, output.margin))

    def _features(self, value: Any) -> KeyedFeatures:
        labels = self.detector.labels
        z, keys = as_features(value, self.encoder, most_dims=3 if self.detector.parts else 2)
        return KeyedFeatures(z if isinstance(value, Tensor) else z.to(labels.id_anchors.device), keys)

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
        verdicts = Verdicts(self.detector.labels.names, output, rule.read(state, output.margin))
        tally = (since or Snapshot(None, None, Tally(*torch.zeros(4, dtype=torch.int64)))).tally
        known = tally.known + (~verdicts.unknown).sum()
        self._live = rule, snapshot._replace(threshold=state, tally=snapshot.tally._replace(known=known))
        self._reservoir = self._reservoir.rejudged(verdicts, int(tally.seen))
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
        recall = recall if recall is not None else getattr(self.rule, "recall", Adaptive.recall)
        margins = self.detector.score(self.snapshot.detector, z).cpu().margin
        if guarantee or not self.detector.in_nats:
            return self._guarantee(margins, recall)
        self._follow(recall)
        odd = torch.zeros(0, dtype=torch.int64) if keep_odd else odd_images(margins)
        kept = torch.ones(len(z), dtype=torch.bool).index_fill(0, odd, False)
        self._told = self._told.and_photos(z[kept.to(z.device)])
        self.look_at_told()
        low, high = self.recall_interval or RecallInterval(0.0, 1.0)
        return Calibration(int(kept.sum()), recall, self.threshold, low, high, tuple(odd.tolist()))

    def _follow(self, recall: float) -> None:
        """Let the stream, and what is told, set the threshold from now on."""
        rule = replace(self.rule, recall=recall) if isinstance(self.rule, Adaptive) else Adaptive(recall, in_nats=True)
        if self.rule != rule:
            self._live = rule, self.snapshot._replace(threshold=rule.taken_over(stream_of(self.snapshot.threshold)))

    def _guarantee(self, margins: Float[Tensor, " n"], recall: float) -> Calibration:
        """Let these margins of known images set the threshold from now on."""
        rule, snapshot = Calibrated(recall, len(margins), in_nats=self.detector.in_nats), self.snapshot
        state = rule.calibrated_state(
            rule.inner.taken_over(stream_of(snapshot.threshold)), margins, at=int(snapshot.tally.seen)
        )
        self._live = rule, snapshot._replace(threshold=state)
        return calibration(margins, recall=recall)

    def tell(self, z: Float[Tensor, "n d"] | Any, known: Bool[Tensor, " n"] | Sequence[bool]) -> None:
        """Correct or confirm verdicts: tell the threshold which images are known; the detector learns nothing.

        >>> from unseen import demo
        >>> session = Session(demo.load().space)
        >>> before = session.threshold
        >>> session.tell(demo.load().z[:10], [False] * 10)
        >>> session.threshold > before
        True
        """
        if not self.detector.in_nats:
            raise SettingError(
                f"expected a detector whose margins are in nats, got {self.detector.name!r}; use pooled, or calibrate"
            )
        z, _ = self._features(z)
        self._told = self._told.and_corrected(z, torch.as_tensor(known, dtype=torch.bool))
        self.look_at_told()

    def without_photos_of(self, name: str) -> Session:
        """Another session without the calibration photos that look most like a name: it is known no longer."""
        session, labels = self.at(self.snapshot), self.detector.labels
        if len(self._told.z):
            label = self.detector.score(self.snapshot.detector, self._told.z.to(labels.id_anchors)).cpu().label
            stays = ~self._told.is_photo | (label != labels.names.index(name))
            session._told = ToldImages(*(part[stays] for part in self._told))
        return session

    @property
    def told(self) -> ToldImages:
        """All images whose side is known: spared examples, calibration photos and corrected verdicts."""
        labels, told = self.detector.labels, self._told
        if labels.spared is not None:
            told = told.and_photos(labels.spared.z)
        return told.and_corrected(*self._reservoir.corrected(labels.names))

    def look_at_told(self) -> None:
        """Set the threshold anew by the margins that images now have whose side is known."""
        rule, snapshot = self._live
        if not isinstance(rule, Adaptive) or not self.detector.in_nats:
            return
        told = self.told
        if len(told.z) or snapshot.threshold.told.images:  # what was told may have been taken back
            z = told.z.to(self.detector.labels.id_anchors)
            margin = self.detector.score(snapshot.detector, z).cpu().margin if len(z) else torch.zeros(0)
            corrected = Corrected(margin[~told.is_photo], told.known[~told.is_photo])
            state = rule.told(snapshot.threshold, margin[told.is_photo], corrected)
            self._live = rule, snapshot._replace(threshold=state)

    @property
    def until_look(self) -> int:
        """After how many images what was told is looked at again: a fixed count, whatever the calls."""
        if not isinstance(self.rule, Adaptive) or not len(self.told.z):
            return sys.maxsize
        seen = int(self.snapshot.tally.seen)
        interval = max(FIRST_INTERVAL, 1 << max(0, seen.bit_length() - 3))
        return interval - seen % interval

    def at(
        self, snapshot: Snapshot, *, detector: Detector[Any] | None = None, reservoir: Reservoir | None = None
    ) -> Session:
        """Another session that goes on from `snapshot`, with `detector` where states of both are the same."""
        session = copy(self)
        session._detector, session._live = detector or self.detector, (self.rule, snapshot)
        session._reservoir = reservoir or self._reservoir
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
        if with_space:
            self._save_space(checkpoint.space_path(Path(path)))
        checkpoint.save(path, self._states(), {**self.identity, **extra})

    def _save_space(self, path: Path) -> None:
        labels = self.detector.labels
        if self._space_at != (path, labels.fingerprint):
            if not path.exists() or LabelSpace.load(path).fingerprint != labels.fingerprint:
                labels.save(path)
            self._space_at = path, labels.fingerprint

    def to_bytes(self) -> bytes:
        """What `save` writes, without the label space."""
        return checkpoint.to_bytes(self._states(), self.identity)

    def _states(self) -> dict[str, Any]:
        return {**self.snapshot._asdict(), "reservoir": self._reservoir.tensors(), "told": self._told}

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
        if labels is None:
            if isinstance(source, bytes):
                raise StateError(
                    "expected a label space for a state in bytes, got none; pass Session.load(data, labels)"
                )
            labels = checkpoint.find_space(Path(source))
        spec = SessionSpec.of_identity(found.identity, labels)
        session = spec.build() if detector is None else cls(detector, spec.rule)
        session.encoder = encoder
        return session.resumed(found)

    def resumed(self, found: checkpoint.Checkpoint) -> Session:
        """A session that goes on from a checkpoint; refuse one of another identity."""
        remedy = "use the settings the state was learned with"
        for what, value in self.identity.items():
            checkpoint.check_agreement(what, value, found.identity.get(what), remedy)
        fresh = self.snapshot._asdict()
        if unknown := found.states.keys() - fresh.keys() - {"reservoir", "told"}:
            raise StateError(f"expected states {sorted(fresh)}, got {sorted(unknown)} besides; pass the right file")
        states = found.states
        if found.version <= checkpoint.OLD_THRESHOLDS:
            states = {"threshold": flatten(fresh["threshold"])} | states
        parts = {name: checkpoint.restore_state(start, states.get(name, {})) for name, start in fresh.items()}
        reservoir = self._restored_reservoir(states.get("reservoir"), int(parts["tally"].seen))
        session = self.at(Snapshot(**parts), reservoir=reservoir)
        if told := states.get("told"):
            session._told = ToldImages(**told)
        return session

    def _restored_reservoir(self, tensors: Mapping[str, Tensor] | None, seen: int) -> Reservoir:
        """The reservoir of a state; where a state has none, it begins with the next image."""
        return Reservoir.of_tensors(tensors) if tensors else replace(self._reservoir, since=seen)

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


@dataclass(frozen=True)
class SessionSpec:
    """The description of a session: what commands, keyed streams, the service and Ray workers build it from.

    >>> from unseen import demo
    >>> spec = SessionSpec(demo.load().space, "mcm", threshold="fixed", threshold_settings={"threshold": 0.5})
    >>> spec.build().threshold
    0.5
    """

    labels: LabelSpace
    detector: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    threshold: str = "adaptive"
    threshold_settings: Mapping[str, Any] = field(default_factory=dict)
    keep: int = UNKNOWN  # unknown images that are kept

    @classmethod
    def of_state(cls, source: str | Path | bytes, labels: LabelSpace) -> SessionSpec:
        """The description of the session that a state was saved by."""
        return cls.of_identity(checkpoint.load(source).identity, labels)

    @classmethod
    def of_identity(cls, identity: Mapping[str, Any], labels: LabelSpace) -> SessionSpec:
        """The description of the session with this identity; refuse that of another label space."""
        remedy = "load the label space this state was learned with"
        checkpoint.check_agreement("label space", labels.fingerprint, identity["labels"], remedy)
        return cls(labels, *(identity[part] for part in ("detector", "settings", "threshold", "threshold_settings")))

    @property
    def rule(self) -> ThresholdRule[Any]:
        """The threshold rule by itself."""
        return threshold.make(self.threshold, **self.threshold_settings)

    def build(self) -> Session:
        """A session before its first sample."""
        return Session(detectors.make(self.detector, self.labels, **self.settings), self.rule, keep=self.keep)

    def resume(self, source: str | Path | bytes) -> Session:
        """A session that goes on from a saved state; refuse a state that another description made."""
        return self.build().resumed(checkpoint.load(source))

    @property
    def identity(self) -> dict[str, Any]:
        """What a state must agree on to be resumed."""
        return self.build().identity


def stream_of(state: Any) -> MarginHistory | None:
    """What a state of a threshold rule knows of the stream, None of a fixed threshold."""
    state = state.stream if isinstance(state, CalibratedMargins) else state
    return state if isinstance(state, MarginHistory) else None


def _tally_after(tally: Tally, verdicts: Verdicts) -> Tally:
    route = verdicts.output.route
    return Tally(
        tally.seen + len(route),
        tally.known + (~verdicts.unknown).sum(),
        tally.taught_known + (route > 0).sum(),
        tally.taught_unknown + (route < 0).sum(),
    )
