"""Run a suite: every unknown set, order, seed and detector, one row each, resumed where it stopped.

The protocol, which the harness enforces: a detector gets features in arrival order and nothing else; the score of a
sample depends on no later sample (each run perturbs the future of its own stream first); order and seed are in the row;
no setting depends on an unknown set. What breaks one of these on purpose has a kind of its own (KINDS), a mark in every
row and tables apart.
"""

from unseen.bench.grid import DETECTORS, KINDS, ORACLE, Run, default_detectors, grid, swept
from unseen.bench.pool import Pool, outcomes
from unseen.bench.rows import Results, Row, mean_and_deviation, read, summarised
from unseen.bench.run import Outcome, execute, identity

__all__ = [
    "DETECTORS",
    "KINDS",
    "ORACLE",
    "Outcome",
    "Pool",
    "Results",
    "Row",
    "Run",
    "default_detectors",
    "execute",
    "grid",
    "identity",
    "mean_and_deviation",
    "outcomes",
    "read",
    "summarised",
    "swept",
]
