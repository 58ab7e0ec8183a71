from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.streams import space, stream, unit
from unseen.detectors import PooledEvidence
from unseen.detectors.pooled.regression import Regression, sequential_regression, with_intercept
from unseen.text import text_logits


def kalman(x: Tensor, f: Tensor, weight: Tensor, cov: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return prediction and leverage before each sample, then the state after the last: the textbook filter."""
    predicted, leverage = [], []
    for row, value in zip(x, f, strict=True):
        gain = cov @ row
        predicted.append(row @ weight)
        leverage.append(row @ gain)
        weight = weight + gain * (value - predicted[-1]) / (1 + leverage[-1])
        cov = cov - torch.outer(gain, gain) / (1 + leverage[-1])
    return torch.stack(predicted), torch.stack(leverage), weight, cov


@given(
    count=st.integers(1, 40),
    dim=st.integers(1, 12),
    seed=st.integers(0, 99),
    spread=st.floats(0.01, 1e4),
    panel=st.sampled_from([1, 7, 128]),
)
def test_a_block_gives_what_a_kalman_filter_gives_sample_by_sample(count, dim, seed, spread, panel):
    generator = torch.Generator().manual_seed(seed)
    x = with_intercept(unit(count, dim, seed=seed))
    f = 10 * torch.randn(count, generator=generator, dtype=torch.float64)
    weight = torch.randn(dim + 1, generator=generator, dtype=torch.float64)
    cov = torch.eye(dim + 1, dtype=torch.float64) * spread
    met, got = sequential_regression(x, f, Regression(weight, cov), panel=panel)
    predicted, leverage, end, left = kalman(x, f, weight, cov)
    close = {"rtol": 1e-6, "atol": 1e-7 * (1 + spread)}
    torch.testing.assert_close(met.predicted, predicted, **close)
    torch.testing.assert_close(met.leverage, leverage, **close)
    torch.testing.assert_close(got.mean, end, **close)
    torch.testing.assert_close(got.cov, left, **close)
    torch.testing.assert_close(cov - met.whitened.T @ met.whitened, left, **close)


def test_the_regression_after_a_stream_is_ridge_regression(labels):
    detector, z = PooledEvidence(labels), stream(labels, 300)
    _, state = detector.observe(detector.start(), z)
    x, f = with_intercept(z), detector.evidence(text_logits(labels, z, tau=detector.tau)).value
    precision = torch.full((labels.dim + 1,), detector.prior_samples, dtype=torch.float64)
    precision[-1] = 1e-4
    normal = x.T @ x + precision.diag()
    torch.testing.assert_close(state.regression.mean, torch.linalg.solve(normal, x.T @ f), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.regression.cov, torch.linalg.inv(normal), rtol=1e-6, atol=1e-8)


def test_the_covariance_stays_positive_and_symmetric_over_a_very_long_stream():
    labels = space(3, 6, 8, dtype=torch.float32)
    detector, z = PooledEvidence(labels), stream(labels, 2000).float()
    state = detector.start()
    for _ in range(50):
        reading, state = detector.observe(state, z)
    assert int(state.seen) == 100_000
    assert float(torch.linalg.eigvalsh(state.regression.cov).min()) > 0
    torch.testing.assert_close(state.regression.cov, state.regression.cov.T, rtol=1e-6, atol=1e-12)
    assert bool(reading.score.isfinite().all())
