"""Frozen scores, and Algorithms 1 and 2, against their formulas written literally in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from helpers.methods import shares
from helpers.streams import space, stream, unit
from unseen import LabelSpace
from unseen.detectors import make
from unseen.detectors.neglabel import random_groups


@st.composite
def cases(draw: st.DrawFn) -> tuple[LabelSpace, Tensor]:
    known, negative, dim = draw(st.integers(2, 20)), draw(st.integers(4, 200)), draw(st.integers(8, 64))
    labels = space(known, negative, dim)
    return labels, stream(labels, draw(st.integers(1, 30)), seed=draw(st.integers(0, 1000)), noise=0.3)


def literal_mcm(labels: LabelSpace, z: Tensor) -> Tensor:
    p = (z @ labels.id_anchors.T).softmax(1).amax(1)
    return (p / (1 - p)).log()


def literal_neglabel(labels: LabelSpace, z: Tensor) -> Tensor:
    known, negative = (z @ anchors.T for anchors in (labels.id_anchors, labels.ood_anchors))
    return ((known / 0.1).exp().sum(1) / (negative / 0.1).exp().sum(1)).log()


def literal_groups(labels: LabelSpace, z: Tensor) -> Tensor:
    members = random_groups(labels, 4, 0)
    p = shares(z @ labels.id_anchors.T, z @ labels.ood_anchors.T, members, tau=0.1)
    return (p / (1 - p)).log()


def literal_eoe(labels: LabelSpace, z: Tensor) -> Tensor:
    p = (z @ torch.cat([labels.id_anchors, labels.ood_anchors]).T).softmax(1)
    return p[:, : len(labels.names)].amax(1) - 0.25 * p[:, len(labels.names) :].amax(1)


LITERAL: dict[str, tuple[str, dict[str, Any], Callable[[LabelSpace, Tensor], Tensor]]] = {
    "mcm": ("mcm", {}, literal_mcm),
    "maxlogit": ("maxlogit", {}, lambda labels, z: (z @ labels.id_anchors.T).amax(1)),
    "energy": ("energy", {}, lambda labels, z: (z @ labels.id_anchors.T).exp().sum(1).log()),
    "entropy": (
        "entropy",
        {},
        lambda labels, z: -torch.distributions.Categorical(logits=z @ labels.id_anchors.T).entropy(),
    ),
    "neglabel, one group": ("neglabel", {"tau": 0.1, "groups": 1}, literal_neglabel),
    "neglabel, groups": ("neglabel", {"tau": 0.1, "groups": 4}, literal_groups),
    "csp": ("csp", {"tau": 0.1, "groups": 4}, literal_groups),
    "eoe": ("eoe", {}, literal_eoe),
    "variance": ("variance", {}, lambda labels, z: (z @ labels.id_anchors.T).softmax(1).var(1, correction=0)),
}


@pytest.mark.parametrize("which", LITERAL)
@settings(max_examples=10, deadline=None)
@given(case=cases())
def test_frozen_scores_match_their_formulas(which: str, case: tuple[LabelSpace, Tensor]) -> None:
    name, options, formula = LITERAL[which]
    labels, z = case
    detector = make(name, labels, **options)
    output = detector.score(detector.start(), z)
    torch.testing.assert_close(output.score, formula(labels, z), rtol=1e-6, atol=1e-9)
    assert torch.equal(output.label, (z @ labels.id_anchors.T).argmax(1))


@settings(max_examples=15, deadline=None)
@given(case=cases(), alpha=st.floats(0.05, 1), groups=st.integers(1, 4))
def test_dnm_matches_its_formula_with_z_kept_above_zero(
    case: tuple[LabelSpace, Tensor], alpha: float, groups: int
) -> None:
    labels, z = case
    detector: Any = make("dnm", labels, alpha=alpha, groups=groups, tau=0.1)
    known, negative = ((z @ anchors.T / 0.1).exp() for anchors in (labels.id_anchors, labels.ood_anchors))
    mass, size = known.sum(1), len(labels.negatives) // groups
    expected = torch.zeros(len(z), dtype=torch.float64)
    for group in random_groups(labels, groups, 0):
        mean = negative[:, group].mean(1)
        Z = mass + size * (mean / alpha - (1 - alpha) / alpha * known.mean(1))
        Z = torch.maximum(Z, 1e-3 * mass + size * mean / alpha)
        expected += mass / Z / groups
    score = detector.score(None, z).score
    torch.testing.assert_close(torch.sigmoid(score) / detector.kept_share, expected, rtol=1e-9, atol=1e-12)


def test_gl_mcm_adds_the_best_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = space()
    z = unit(20, 1 + 5, 16, seed=4)
    p = (z @ labels.id_anchors.T).softmax(-1)
    detector = make("gl-mcm", labels)
    expected = p[:, 0].amax(-1) + 0.5 * p[:, 1:].amax((1, 2))
    torch.testing.assert_close(detector.score(None, z).score, expected)
    monkeypatch.setattr(type(detector), "logits_at_once", 100)
    torch.testing.assert_close(detector.score(None, z).score, expected)


def test_infoood_is_the_reconstructed_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    labels, z = space(), unit(6, 1 + 3, 16, seed=4)
    detector = make("infoood-reconstructed", labels, groups=5, tau_view=0.3, tau_image=0.4, tau_prior=2.0, smooth=0.7)
    texts, known = torch.cat([labels.id_anchors, labels.ood_anchors]), len(labels.names)
    expected = torch.zeros(6, known, dtype=z.dtype)
    for i, (image, *views) in enumerate(z):
        for view in views:
            e = (texts @ view / 0.3).exp()
            groups = [e[:known].sum() + e[known:][group].sum() for group in detector.members]  # type: ignore[attr-defined]
            s1 = sum(e[:known] / total for total in groups) / 5
            ahead = image + 0.25 * (image - view)
            g = (texts @ (ahead / ahead.norm()) / 0.4).exp()
            s2 = g[:known] / ((texts @ view / 2.0).softmax(0) * g).sum()
            expected[i] += (s1.log() + s2.log()) / 3
    for logits in (2**22, 1):
        monkeypatch.setattr(type(detector), "logits_at_once", logits)
        got = detector.score(None, z)
        torch.testing.assert_close(got.score, 0.7 * (expected / 0.7).exp().sum(1).log())
        torch.testing.assert_close(got.label, expected.argmax(1))


def test_clipscope_divides_by_the_share_of_a_name_among_the_predictions_before() -> None:
    labels = space(4, 15, 12)
    z = stream(labels, 60, noise=0.3)
    counts, expected = torch.ones(4), []
    for x in z:
        known, negative = ((anchors @ x / 0.05).exp() for anchors in (labels.id_anchors, labels.ood_anchors))
        best = int(known.argmax())
        mass = known.sum() / (known.sum() + negative.sum())
        expected.append(float(known[best] / known.sum() * mass / (counts[best] / counts.sum())))
        counts[best] += 1
    detector = make("clipscope", labels, tau=0.05)
    output, state = detector.observe(detector.start(), z)
    torch.testing.assert_close(output.score.exp(), torch.tensor(expected, dtype=torch.float64))
    assert state.predicted.tolist() == counts.tolist()


def literal_online(labels: LabelSpace, z: Tensor, beta: float) -> tuple[list[float], list[int]]:
    """Algorithm 1 as printed."""
    anchors, count, scores, routes = [labels.id_anchors, labels.ood_anchors], [0, 0], [], []
    banks = list(anchors)
    for x in z:
        e = [(side @ x / 0.01).exp().sum() for side in anchors]
        trust = e[0] / (e[0] + e[1])
        side = 0 if trust >= beta else 1 if trust <= 1 - beta else None
        if side is not None:
            count[side] += 1
            pi, p = (banks[side] @ x / 0.05).softmax(0), (anchors[side] @ x / 0.01).softmax(0)
            move = 0.1 / math.sqrt(count[side]) / 0.05 * torch.outer(pi - p, x)
            banks[side] = normalize(banks[side] - move, dim=-1)
        e = [(bank @ x / 0.01).exp().sum() for bank in banks]
        scores.append(float((e[0] / e[1]).log()))
        routes.append(0 if side is None else 1 - 2 * side)
    return scores, routes


@settings(max_examples=15, deadline=None)
@given(case=cases(), beta=st.sampled_from([0.6, 0.95, 0.999]))
def test_online_matches_algorithm_1(case: tuple[LabelSpace, Tensor], beta: float) -> None:
    labels, z = case
    detector = make("online", labels, beta=beta)
    scores, routes = literal_online(labels, z, beta)
    output, _ = detector.observe(detector.start(), z)
    torch.testing.assert_close(output.score, torch.tensor(scores, dtype=torch.float64), rtol=1e-7, atol=1e-7)
    assert output.route.tolist() == routes


def test_online_id_matches_algorithm_2() -> None:
    labels, z = space(5, 30, 16), stream(space(5, 30, 16), noise=0.3)
    bank, seen, expected = labels.id_anchors, 0, []
    for x in z:
        p = (labels.id_anchors @ x / 0.01).softmax(0)
        if p.max() >= 0.95:
            seen += 1
            gradient = torch.outer((bank @ x / 0.05).softmax(0) - p, x) / 0.05
            bank = normalize(bank - 0.1 / math.sqrt(seen) * gradient, dim=-1)
        logits = bank @ x / 0.01
        best = int(logits.argmax())
        expected.append(float(logits[best] - torch.cat([logits[:best], logits[best + 1 :]]).logsumexp(0)))
    detector = make("online-id", labels)
    output, state = detector.observe(detector.start(), z)
    assert 0 < seen < len(z)
    torch.testing.assert_close(output.score, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(state.bank, bank)
