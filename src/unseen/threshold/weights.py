"""The weights of the hypotheses about a stream, in host memory: of a large table only what matters is read.

The table of log densities is nearly a product of two small ones. What the product leaves over is bounded for each
hypothesis by the inequality of Cauchy and Schwarz: one that is left out is negligible, whatever the margins are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from unseen.threshold.nodes import Array, used_nodes

RANK = 16  # of the small tables: with 8 thrice as many hypotheses pass, with 32 a quarter fewer
# Nats that a hypothesis lies at least under the likeliest where it is left out; all of them weigh less than 1e-6 of it.
NEGLIGIBLE = 25.0
TOGETHER = 8  # rows whose numbers stay in the cache of a core
TOLD = 16.0  # weight of margins below which nearly every hypothesis is still possible
FEW = 4  # where one hypothesis of so many passes, it takes longer to collect them than to read the whole table


class SideWeights(NamedTuple):
    """The weight of each distribution of known and of unknown images."""

    known: Float[Array, "U A"]
    unknown: Float[Array, "U B"]


class Screen(NamedTuple):
    """The table as a product, and what the product leaves over."""

    basis: Float[Array, "N R"]  # orthonormal
    bounds: Float[Array, "R+1 M"]  # the other factor, and the norm of what is left of each hypothesis

    @classmethod
    def of(cls, table: Float[Array, "M N"]) -> Screen:
        """The screen of a table, without what is the same for all hypotheses."""
        left = table - table.mean(0)
        basis = np.linalg.eigh((left.T @ left).astype(np.float64)).eigenvectors[:, -RANK:].astype(table.dtype)
        factor = left @ basis
        left -= factor @ basis.T
        return cls(basis, np.vstack([factor.T, np.sqrt(np.vecdot(left, left))]))

    def likely(self, weighted: Float[Array, "U N"], log_prior: Float[Array, "U H"]) -> Int[Array, " m"]:
        """The numbers of the hypotheses that are not negligible in every row."""
        told = weighted @ self.basis
        left = weighted - told @ self.basis.T
        norm = np.sqrt(np.vecdot(left, left))[:, None]
        most = np.hstack([told, norm]) @ self.bounds
        by_share = most.reshape(len(most), -1, log_prior.shape[1])
        by_share += log_prior[:, None]
        best = most.argmax(1)[:, None]
        least = np.take_along_axis(most, best, 1) - 2 * norm * self.bounds[-1, best]  # what that one surely has
        return np.flatnonzero((most >= least - NEGLIGIBLE).any(0))


@dataclass(frozen=True, eq=False)
class HypothesisTable:
    """The log density at each node of every share of known images, distribution of unknown and of known ones."""

    log_density: Float[Array, "M N"]

    @cached_property
    def screen(self) -> Screen:
        """The small tables; not before they are needed, because they take 20 ms."""
        return Screen.of(self.log_density)

    def weights(self, weighted: Float[Array, "U N"], log_prior: Float[Array, "U B A"]) -> SideWeights:
        """The posterior weights after margins at the nodes, given what is known without them."""
        starts = range(0, len(weighted), TOGETHER)
        parts = [self._weights(weighted[i : i + TOGETHER], log_prior[i : i + TOGETHER]) for i in starts]
        known, unknown = (np.concatenate(part) for part in zip(*parts, strict=True))
        total = known.sum(1, keepdims=True)
        return SideWeights(known / total, unknown / total)

    def _weights(self, weighted: Float[Array, "U N"], log_prior: Float[Array, "U B A"]) -> SideWeights:
        if weighted.sum(1).min() >= TOLD:
            rows = self.screen.likely(weighted, log_prior.reshape(len(log_prior), -1))
            if len(rows) * FEW <= len(self.log_density):
                return self.weights_of(rows, weighted, log_prior)
        return self.weights_of_all(weighted, log_prior)

    def weights_of_all(self, weighted: Float[Array, "U N"], log_prior: Float[Array, "U B A"]) -> SideWeights:
        """The weights of both sides over all hypotheses, up to a factor for each row."""
        used = used_nodes(weighted)
        fit = np.ascontiguousarray(product(self.log_density[:, used], weighted[:, used]).T)
        by_share = fit.reshape(len(fit), -1, *log_prior.shape[1:])
        by_share += log_prior[:, None]
        fit -= fit.max(1, keepdims=True)
        weight = np.exp(fit, out=fit).reshape(by_share.shape).sum(1).astype(np.float64)
        return SideWeights(weight.sum(1), weight.sum(2))

    def weights_of(
        self, rows: Int[Array, " m"], weighted: Float[Array, "U N"], log_prior: Float[Array, "U B A"]
    ) -> SideWeights:
        """The same over some hypotheses alone."""
        count, unknowns, knowns = log_prior.shape
        pair, used = rows % (unknowns * knowns), used_nodes(weighted)
        fit = product(self.log_density[:, used][rows], weighted[:, used]).T + log_prior.reshape(count, -1)[:, pair]
        weight = np.exp((fit - fit.max(1, keepdims=True)).astype(np.float64)).ravel()
        row = np.arange(count)[:, None]
        known, unknown = (
            np.bincount((side + size * row).ravel(), weight, count * size).reshape(count, size)
            for side, size in ((pair % knowns, knowns), (pair // knowns, unknowns))
        )
        return SideWeights(known, unknown)


def product(table: Float[Array, "m n"], weighted: Float[Array, "U n"]) -> Float[Array, "m U"]:
    """The fit of hypotheses, the same bits with any number of threads: torch's product, not NumPy's."""
    return (torch.from_numpy(table) @ torch.from_numpy(weighted).T).numpy()
