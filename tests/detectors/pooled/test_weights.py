from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space, stream, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.regression import sequential_regression, with_intercept
from unseen.detectors.pooled.weights import PoolWeights, PredictionRecord, bimodality, powers
from unseen.text import text_logits


def weights(detector: PooledEvidence, f: Tensor, u: Tensor) -> PoolWeights:
    """Return the weights after very many samples with evidence f and predictions u."""
    seen = torch.tensor(100_000)
    errors = torch.stack([(f - f.mean()).square().sum(), (f - u).square().sum()])
    record = PredictionRecord(errors * seen / len(f), *(powers(x).mean(0) * seen for x in (f, u)))
    return detector._weights(record, seen)


def test_the_pool_gets_weight_where_it_predicts_evidence_and_separates_groups():
    detector, generator = PooledEvidence(space(dim=16)), torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, generator=generator, dtype=torch.float64)
    side = (torch.rand(20_000, generator=generator) < 0.3).double()
    nothing = weights(detector, 10 + noise, torch.full_like(noise, 10.0))
    groups = weights(detector, 10 + 4 * side + noise, 10 + 4 * side)
    smooth = weights(detector, 10 + 4 * noise + noise.roll(1), 10 + 4 * noise)
    blurred = weights(detector, 10 + 4 * side + 0.8 * noise, 10 + 2 * noise.roll(1) + 4 * side)
    assert float(nothing.trust) == pytest.approx(0, abs=1e-6)
    assert float(nothing.pool) == pytest.approx(0.5, abs=1e-3)
    assert float(groups.trust) > 0.95
    assert float(groups.pool) > 0.95
    assert float(smooth.trust) > 0.9  # the pool predicts evidence, but there is one group only
    assert float(smooth.pool) < 0.6
    assert float(blurred.trust) < 0.6  # two groups that pooling mixes
    assert float(groups.level) == pytest.approx(11.2, abs=0.1)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_two_points_of_any_weights_have_a_bimodality_of_one(share):
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(50_000, generator=generator) < share).double() * 7 + 20
    normal = 20 + 3 * torch.randn(50_000, generator=generator, dtype=torch.float64)
    found = [float(bimodality(powers(x).sum(0), torch.tensor(len(x)), 0.0)) for x in (points, normal)]
    assert found[0] == pytest.approx(1, abs=1e-6)
    assert found[1] == pytest.approx(1 / 3, abs=0.01)


def test_bimodality_of_three_samples_is_that_of_a_normal():
    sums = powers(torch.tensor([1.0, 9.0, 1.0], dtype=torch.float64)).sum(0)
    assert float(bimodality(sums, torch.tensor(3), 20.0)) == pytest.approx(1 / 3)


def test_the_record_sums_what_was_predicted_before_each_sample(labels):
    detector, z = PooledEvidence(labels), stream(labels, 50)
    f = detector.evidence(text_logits(labels, z, tau=detector.tau)).value
    _, state = detector.observe(detector.start(), z)
    met, _ = sequential_regression(with_intercept(z), f, detector.start().regression)
    level = torch.stack([f[:i].mean() for i in range(1, 50)])
    weight = torch.arange(1, 50) / torch.arange(2, 51)
    torch.testing.assert_close(state.record.errors[0], ((f[1:] - level).square() * weight).sum())
    torch.testing.assert_close(state.record.errors[1], ((f - met.predicted).square() / (1 + met.leverage))[1:].sum())
    torch.testing.assert_close(state.record.evidence_powers, powers(f).sum(0))
    torch.testing.assert_close(state.record.predicted_powers, powers(met.predicted[1:]).sum(0))


def test_a_sample_keeps_its_own_evidence_where_the_pool_would_extrapolate():
    labels = space(dim=32)
    centre = unit(1, 32, seed=7)
    near = normalize(centre + 0.02 * torch.randn(600, 32, generator=torch.Generator().manual_seed(0)).double(), dim=1)
    far = normalize(-centre + 0.1 * unit(5, 32, seed=8), dim=1)
    detector = PooledEvidence(labels)
    _, state = detector.observe(detector.start(), near)
    own = [detector.evidence(text_logits(labels, z, tau=detector.tau)).value for z in (near[:50], far)]
    moved = [(detector.score(state, z).score - f).abs() for z, f in zip((near[:50], far), own, strict=True)]
    assert float(moved[0].mean()) > 0.1
    assert float(moved[1].max()) < 1e-6
    unguarded = PooledEvidence(labels, leverage_limit=1e6).score(state, far).score
    assert float((unguarded - own[1]).abs().min()) > 0.1
