"""Bayesian linear regression of the evidence on the image, sample by sample but computed in blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

INTERCEPT_VARIANCE = 1e4  # prior of the intercept: the level of the evidence is free
PANEL = 128  # samples factored at once: more cost a larger factor, fewer more passes over the state


class Regression(NamedTuple):
    """The posterior of the weights; the intercept is last."""

    mean: Float[Tensor, " d1"]
    cov: Float[Tensor, "d1 d1"]  # in units of the noise variance

    @classmethod
    def prior(cls, dim: int, precision: float) -> Regression:
        """Return the posterior before any sample; `precision` is that of the slopes."""
        variance = torch.full((dim + 1,), 1 / precision, dtype=torch.float64)
        variance[-1] = INTERCEPT_VARIANCE
        return cls(torch.zeros_like(variance), variance.diag())

    def predict(self, x: Float[Tensor, "T d1"]) -> tuple[Float[Tensor, " T"], Float[Tensor, " T"]]:
        """Return prediction u and leverage h (predictive variance less noise) of each sample."""
        return x @ self.mean, ((x @ self.cov) * x).sum(1)

    @property
    def slope_variance(self) -> Float[Tensor, ""]:
        """Return the summed variance of the slopes, without the intercept."""
        return self.cov.diagonal()[:-1].sum()


class Predictions(NamedTuple):
    """What each sample of a block met, in arrival order: row i is computed before the update by sample i."""

    predicted: Float[Tensor, " T"]  # u
    leverage: Float[Tensor, " T"]  # h
    whitened: Float[Tensor, "T d1"]  # the update subtracts this row's outer product from the covariance
    innovation: Float[Tensor, " T"]  # (f - u) / sqrt(1 + h)

    @property
    def slope_reduction(self) -> Float[Tensor, " T"]:
        """Return by how much each sample reduces the summed variance of the slopes."""
        return self.whitened[:, :-1].square().sum(1)


def with_intercept(z: Float[Tensor, "T d"]) -> Float[Tensor, "T d1"]:
    """Return samples with a one for the intercept, in the float64 that the regression needs."""
    return torch.cat([z, z.new_ones(len(z), 1)], dim=1).double()


def sequential_regression(
    x: Float[Tensor, "T d1"], f: Float[Tensor, " T"], regression: Regression, *, panel: int = PANEL
) -> tuple[Predictions, Regression]:
    """Return exactly what a Kalman filter computes sample by sample, and its state after the last."""
    parts = []
    for rows, values in zip(x.split(panel), f.split(panel), strict=True):
        part = panel_regression(rows, values, regression)
        mean = regression.mean + part.whitened.T @ part.innovation
        regression = Regression(mean, regression.cov - part.whitened.T @ part.whitened)
        parts.append(part)
    return Predictions(*(torch.cat(column) for column in zip(*parts, strict=True))), regression


def panel_regression(x: Float[Tensor, "T d1"], f: Float[Tensor, " T"], regression: Regression) -> Predictions:
    """Return what a few samples meet one by one, from one Cholesky factor.

    Their evidence has covariance I + x cov x' = C C'; solving with C subtracts from each sample what the earlier ones
    have already explained.
    """
    gain = x @ regression.cov
    factor = torch.linalg.cholesky(gain @ x.T + torch.eye(len(x), dtype=x.dtype, device=x.device))
    known = torch.cat([gain, (f - x @ regression.mean).unsqueeze(1)], dim=1)
    whitened = torch.linalg.solve_triangular(factor, known, upper=False)
    deviation = factor.diagonal()
    return Predictions(f - whitened[:, -1] * deviation, deviation.square() - 1, whitened[:, :-1], whitened[:, -1])
