"""What a detector is: a label space, a state, and two verbs that never see a label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from unseen.errors import FeatureError, LabelError, SettingError
from unseen.labels import LabelSpace

S = TypeVar("S")

BLOCK = 512  # samples per block: working memory is bounded by it, not by the stream
GPU_BLOCK = 8192  # a GPU wants more at once, and has the memory
UNIT_TOLERANCE = 1e-2  # float16 features on disk are unit to about 1e-3


class DetectorOutput(NamedTuple):
    """What a detector returns for each sample.

    >>> DetectorOutput.frozen(torch.tensor([2.0]), torch.tensor([0]), baseline=torch.tensor([0.5])).margin
    tensor([1.5000])
    """

    score: Float[Tensor, " T"]  # log-odds where the method has odds; higher = more likely one of the known names
    label: Int[Tensor, " T"]  # the most likely known name
    route: Int8[Tensor, " T"]  # +1: taught the known side, -1: taught the unknown side, 0: taught nothing
    baseline: Float[Tensor, " T"]  # the score of an image related to no name: 0 where scores are log-odds
    negative: Int[Tensor, " T"]  # the nearest negative, what an unknown image may be; -1 where the method has none

    @property
    def margin(self) -> Float[Tensor, " T"]:
        """Score - baseline: comparable over the life of a stream."""
        return self.score - self.baseline

    @classmethod
    def of(cls, score: Tensor, label: Tensor, route: Tensor, negative: Tensor | None = None) -> DetectorOutput:
        """The output of a method whose scores are log-odds."""
        negative = torch.full_like(label, -1) if negative is None else negative
        return cls(score, label, route.to(torch.int8), torch.zeros_like(score), negative)

    @classmethod
    def frozen(
        cls, score: Tensor, label: Tensor, baseline: Tensor | None = None, negative: Tensor | None = None
    ) -> DetectorOutput:
        """The output for samples that taught nothing."""
        found = cls.of(score, label, torch.zeros_like(label), negative)
        return found if baseline is None else found._replace(baseline=baseline)

    @classmethod
    def joined(cls, parts: list[DetectorOutput]) -> DetectorOutput:
        """The outputs for consecutive samples as one."""
        return parts[0] if len(parts) == 1 else cls(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def cpu(self) -> DetectorOutput:
        """The output in host memory."""
        return DetectorOutput(*(column.cpu() for column in self))


@dataclass(frozen=True, eq=False)
class Detector(ABC, Generic[S]):
    """A published method over one label space. No method takes a label: a leak must be impossible to type.

    Subclasses write `start`, `read` and, if they learn, `learn`; both get checked unit features, a block at a time.
    A state is None or a NamedTuple (of NamedTuples) of tensors, never written to: a reader holds a whole snapshot.

    >>> from unseen import demo, detectors
    >>> detector = detectors.make("mcm", demo.load().space)
    >>> output, state = detector.observe(detector.start(), demo.load().z[:5])
    >>> output.margin.shape, state
    (torch.Size([5]), None)
    """

    labels: LabelSpace

    name: ClassVar[str]
    needs_names: ClassVar[int] = 1  # 2 where names compete: a softmax over one is always 1
    needs_negatives: ClassVar[bool] = False
    in_nats: ClassVar[bool] = False  # margins are log-odds against the negatives, less those of an unrelated image
    parts: ClassVar[str] = ""  # "patches" or "views": z is [T, 1 + P, d], the image's vector, then one per part
    transfers: ClassVar[bool] = False  # a state can move to another label space

    @property
    def baseline(self) -> float:
        """The score of an image that is related to no name: 0 where scores are log-odds."""
        return 0.0

    def __post_init__(self) -> None:
        """Refuse a label space this method cannot work on, and settings outside their ranges."""
        self.check_counts(len(self.labels.names), len(self.labels.negatives))
        for one in fields(self):
            if check := one.metadata.get("check"):
                check(one.name, getattr(self, one.name))

    @classmethod
    def check_counts(cls, names: int, negatives: int) -> None:
        """Refuse so many names and negatives, if this method cannot work on them: known before any is encoded."""
        if names < cls.needs_names:
            raise LabelError(
                f"expected at least {cls.needs_names} known names for {cls.name!r}, got {names}; "
                "add a name or choose a detector that weighs names against negatives (neglabel)"
            )
        if cls.needs_negatives and not negatives:
            raise LabelError(
                f"expected a label space with negatives for {cls.name!r}, got none; mine some with `unseen mine`, or "
                "choose a detector that needs only the known names (mcm)"
            )

    @abstractmethod
    def start(self) -> S:
        """The state before the first sample."""

    @abstractmethod
    def read(self, state: S, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """Score a block with the state as it is."""

    def learn(self, state: S, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, S]:
        """Score a block in arrival order, each sample after its own update; methods that never learn only read."""
        return self.read(state, z), state

    def score(self, state: S, z: Float[Tensor, "T d"]) -> DetectorOutput:
        """How `state` reads `z`: pure, and the order of the samples does not matter."""
        return DetectorOutput.joined([self.read(state, block) for block in blocks(self._checked(z), BLOCK)])

    def observe(self, state: S, z: Float[Tensor, "T d"]) -> tuple[DetectorOutput, S]:
        """The output for `z`, learned from in arrival order, and the state after the last sample."""
        outputs = []
        for block in blocks(self._checked(z), self.block_for(z)):
            output, state = self.learn(state, block)
            outputs.append(output)
        return DetectorOutput.joined(outputs), state

    def observe_many(
        self, states: Sequence[S], z: Float[Tensor, "n d"], orders: Sequence[Int[Tensor, " T"]]
    ) -> list[tuple[DetectorOutput, S]]:
        """Observe independent streams, each an order of rows of `z`: seeds, sets, tenants over one pool of features.

        The results are those of `observe(state, z[order])` for each; detectors that can do all at once on a GPU do.
        """
        return [self.observe(state, z[order]) for state, order in zip(states, orders, strict=True)]

    def block_for(self, z: Tensor) -> int:
        """How many samples `learn` gets at once: memory is bounded by it, and results do not depend on it."""
        return GPU_BLOCK if z.is_cuda else BLOCK

    def transferred(self, state: S, before: Detector[S], z: Float[Tensor, "n d"]) -> S:
        """A state of `before`, the same detector over another label space, as one of this detector's.

        What was learned of a word goes where the word has gone; a new word starts from its text. `z` are images of the
        stream, from which means that depend on the names are corrected.
        """
        if not self.transfers:
            raise SettingError(
                f"expected a detector whose state can move to other names, got {self.name!r}; "
                "choose pooled, online or one that never learns"
            )
        return self._transferred(state, before, self._checked(z))

    def _transferred(self, state: S, before: Detector[S], z: Float[Tensor, "n d"]) -> S:
        return state

    @property
    def settings(self) -> dict[str, object]:
        """Every option by name: what a checkpoint must agree on."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "labels" and f.init}

    def check_features(self, z: Tensor) -> None:
        """Refuse features that `observe` and `score` refuse."""
        self._checked(z)

    def _checked(self, z: Tensor) -> Tensor:
        if z.ndim != 2 + bool(self.parts) or z.shape[-1] != self.labels.id_anchors.shape[1]:
            shape = f"[n, 1 + {self.parts}, {self.labels.dim}]" if self.parts else f"[n, {self.labels.dim}]"
            raise FeatureError(
                f"expected features of shape {shape} for this label space, got {list(z.shape)}; "
                "pass a batch (z[None]) from the same encoder"
            )
        return unit(z, like=self.labels.id_anchors)


def blocks(z: Tensor, size: int) -> Sequence[Tensor]:
    """Consecutive parts of at most `size` samples, at least one."""
    return z.split(size) if z.shape[0] > size else (z,)


def unit(z: Tensor, *, like: Tensor) -> Tensor:
    """Features as exactly unit rows in the dtype and on the device of `like`; refuse what is not nearly so."""
    if not z.is_floating_point():
        raise FeatureError(f"expected floating-point features, got {z.dtype}; convert with .float()")
    if z.device != like.device:
        raise FeatureError(f"expected features on {like.device} like the label space, got {z.device}; use .to()")
    z = z.detach().to(like.dtype)
    norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    if not bool((norm - 1).abs_().le(UNIT_TOLERANCE).all()):  # NaN compares false, so it ends up here too
        raise FeatureError(_not_unit(z, norm))
    return z / norm


def _not_unit(z: Tensor, norm: Tensor) -> str:
    row, *patch = (~((norm - 1).abs() <= UNIT_TOLERANCE)).squeeze(-1).nonzero()[0].tolist()
    where = f"row {row}" + (f", patch {patch[0]}" if patch else "")
    worst = float(norm[row, *patch])
    if not bool(z[row, *patch].isfinite().all()):
        return f"expected finite features, got NaN or infinity in {where}; drop the images that failed to encode"
    if worst == 0:
        return f"expected unit features, got a zero vector in {where}; drop the images that failed to encode"
    return f"expected unit features, got a norm of {worst:.4g} in {where}; use torch.nn.functional.normalize(z, dim=-1)"


def setting(default: Any, low: float, high: float, *, low_open: bool = False) -> Any:
    """A field of a detector with its default, and the range `[low, high]`, or `(low, high]`, of its values."""
    return field(default=default, metadata={"check": partial(in_range, low=low, high=high, low_open=low_open)})


def above_zero(default: float) -> Any:
    """A field of a detector with its default, whose values are finite and above zero."""
    return field(default=default, metadata={"check": lambda name, value: positive(**{name: value})})


def in_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    """Refuse a setting outside `[low, high]`, or `(low, high]` when `low_open`."""
    if not (low < value <= high if low_open else low <= value <= high):
        bracket = "(" if low_open else "["
        raise SettingError(f"expected {name} in {bracket}{low:g}, {high:g}], got {value!r}; try the default")


def positive(**settings: float) -> None:
    """Refuse settings that are not finite and above zero."""
    for name, value in settings.items():
        if not 0 < value < float("inf"):
            raise SettingError(f"expected {name} above 0, got {value!r}; the default is a good start")


@dataclass(frozen=True, eq=False)
class Frozen(Detector[None]):
    """A method whose score depends on the frozen text only."""

    transfers: ClassVar[bool] = True

    def start(self) -> None:
        return


@dataclass(frozen=True, eq=False)
class FrozenSoftmax(Frozen):
    """A method whose score depends on a softmax over names at the temperature `tau`."""

    tau: float = above_zero(1.0)  # on raw cosines, as published
