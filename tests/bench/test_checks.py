"""Every check must fail on a detector that is broken in the way it looks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space
from unseen.detectors import Detector, DetectorOutput, Online
from unseen_bench import checks


class Count(NamedTuple):
    seen: Tensor


@dataclass(frozen=True, eq=False)
class Compliant(Detector[Count]):
    """A minimal detector that learns: the score is a cosine plus a little for every sample seen so far."""

    name: ClassVar[str] = "honest"

    def start(self) -> Count:
        return Count(torch.zeros((), dtype=torch.float64))

    def read(self, state: Count, z: Tensor) -> DetectorOutput:
        cosine, label = (z @ self.labels.id_anchors.T).max(dim=1)
        return DetectorOutput.frozen(cosine + 0.01 * state.seen, label)

    def learn(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        output = self.read(state, z)
        extra = 0.01 * torch.arange(1, len(z) + 1, dtype=torch.float64)
        return output._replace(score=output.score + extra), Count(state.seen + len(z))


class TakesLabels(Compliant):
    def evaluate(self, z: Tensor, labels: Tensor) -> None: ...


class NotFinite(Compliant):
    def read(self, state: Count, z: Tensor) -> DetectorOutput:
        return (output := super().read(state, z))._replace(score=output.score / 0)


@dataclass(frozen=True, eq=False)
class ScoreRemembers(Compliant):
    calls: list[int] = field(default_factory=list)

    def score(self, state: Count, z: Tensor) -> DetectorOutput:
        self.calls.append(1)
        return (output := super().score(state, z))._replace(score=output.score + len(self.calls))


class ScoreTeaches(Compliant):
    def score(self, state: Count, z: Tensor) -> DetectorOutput:
        return (output := super().score(state, z))._replace(route=torch.ones_like(output.route))


class ScoreByPlace(Compliant):
    def read(self, state: Count, z: Tensor) -> DetectorOutput:
        return (output := super().read(state, z))._replace(score=output.score + 0.01 * torch.arange(len(z)))


class WhitensByBatch(Compliant):
    """Divide by the second moment of the whole call, which a future of mirrored samples leaves as it was."""

    def learn(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        moment = z.T @ z / max(len(z), 1) + 0.1 * torch.eye(z.shape[1], dtype=z.dtype)
        return super().learn(state, normalize(z @ torch.linalg.inv(moment), dim=1))


class BaselineOfBatch(Compliant):
    """Keep the score and put what the whole call says into the baseline: the margin knows the future."""

    def learn(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        output, state = super().learn(state, z)
        return output._replace(baseline=output.score.mean().nan_to_num().expand(len(z))), state


class ScalesByLength(Compliant):
    """Blend by the share of the stream that has passed, which takes its length."""

    def observe(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        output, after = super().observe(state, z)
        passed = torch.arange(1, len(z) + 1) / max(len(z), 1)
        return output._replace(score=output.score * passed.sqrt()), after


class CountsCalls(Compliant):
    def learn(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        return super().learn(state, z)[0], Count(state.seen + 1)


@dataclass(frozen=True, eq=False)
class KeepsHalfItsState(Compliant):
    hidden: list[int] = field(default_factory=list)

    def learn(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        output, state = super().learn(state, z)
        self.hidden.extend([1] * len(z))
        return output._replace(score=output.score + len(self.hidden)), state


class Last(NamedTuple):
    features: Tensor


class KeepsItsInput(Compliant):
    def start(self) -> Last:  # type: ignore[override]
        return Last(self.labels.id_anchors[:1])

    def read(self, state: Last, z: Tensor) -> DetectorOutput:  # type: ignore[override]
        cosine, label = (z @ self.labels.id_anchors.T).max(dim=1)
        return DetectorOutput.frozen(cosine + (z @ state.features.T).sum(dim=1), label)

    def observe(self, state: Last, z: Tensor) -> tuple[DetectorOutput, Last]:  # type: ignore[override]
        return self.score(state, z), Last(z[-1:])  # type: ignore[arg-type]


class Grows(KeepsItsInput):
    def observe(self, state: Last, z: Tensor) -> tuple[DetectorOutput, Last]:  # type: ignore[override]
        return self.score(state, z), Last(torch.cat([state.features, z]))  # type: ignore[arg-type]


class WritesItsState(Compliant):
    def learn(self, state: Count, z: Tensor) -> tuple[DetectorOutput, Count]:
        output, after = super().learn(state, z)
        return output, Count(state.seen.copy_(after.seen))


class TakesAnything(Compliant):
    def _checked(self, z: Tensor) -> Tensor:
        return z.nan_to_num().double().expand(1, -1) if z.ndim == 1 else z.nan_to_num().double()[:, : self.labels.dim]

    def read(self, state: Count, z: Tensor) -> DetectorOutput:
        width = z.shape[1]
        cosine, label = (z @ self.labels.id_anchors[:, :width].T).max(dim=1)
        return DetectorOutput.frozen(cosine, label)


BROKEN: list[tuple[type[Detector[Any]], Callable[..., None], str]] = [
    (TakesLabels, checks.check_no_label_parameter, r"evaluate\(\) without a parameter for the truth, got \['labels'\]"),
    (NotFinite, checks.check_finite_scores, "expected finite scores, got NaN or infinity"),
    (ScoreRemembers, checks.check_score_is_pure, "same state and features to agree"),
    (ScoreTeaches, checks.check_score_is_pure, r"expected score\(\) to teach nothing"),
    (ScoreByPlace, checks.check_score_order_free, "in reverse order to agree"),
    (WhitensByBatch, checks.check_causal, "earlier readings of streams that differ later to agree"),
    (BaselineOfBatch, checks.check_causal, r"differ later to agree within .*, got baseline .* apart"),
    (ScalesByLength, checks.check_length_free, "earlier readings of streams of 60 and 30 samples to agree"),
    (CountsCalls, checks.check_blocking, r"calls of \[1\]"),
    (KeepsHalfItsState, checks.check_state_survives_checkpoint, "after a checkpoint to agree"),
    (KeepsItsInput, checks.check_inputs_may_be_overwritten, "a state after its input was overwritten"),
    (WritesItsState, checks.check_does_not_write_state, r"other values in \['seen'\]"),
    (Grows, checks.check_memory_is_bounded, "bytes after four times the stream, got"),
    (TakesAnything, checks.check_bad_input, r"FeatureError from score\(\) on one dimension too few, got none"),
]


@pytest.mark.parametrize(("kind", "check", "words"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_check_fails_on_what_it_looks_for(kind: type[Detector[Any]], check: checks.Check, words: str) -> None:
    detector = kind(space(8, 30, 16))
    with pytest.raises(AssertionError, match=words):
        check(detector, checks.example_stream(detector))


def test_every_check_has_a_detector_that_fails_it() -> None:
    assert {check for _, check, _ in BROKEN} == set(checks.ALL_CHECKS)


def test_check_detector_names_the_check_that_failed() -> None:
    with pytest.raises(AssertionError, match=r"^check_causal: expected earlier readings of streams that differ later"):
        checks.check_detector(BaselineOfBatch(space(8, 30, 16)))


def test_the_example_stream_teaches_both_sides_and_follows_the_label_space() -> None:
    detector = Online(space(8, 60, 24, dtype=torch.float32))
    z = checks.example_stream(detector)
    assert z.dtype == torch.float32
    assert {-1, 1} <= set(detector.observe(detector.start(), z)[0].route.tolist())
