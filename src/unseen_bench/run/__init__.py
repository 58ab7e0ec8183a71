"""Benchmarks: every unknown set, order, seed and detector of a suite, one row each, resumed where it stopped.

The protocol, which `execute` enforces: a detector gets features in arrival order and nothing else; the reading of a
sample depends on no later sample, not on the length of the stream and not on its division into calls (the first seed
of the first set replaces, cuts and lengthens the future of its own stream, and observes all of it again in calls of
random lengths; every other stream is begun again without its rest); order and seed are in the row; no setting depends
on an unknown set. What breaks one of these on purpose has a kind of its own (KINDS), a mark in every row and tables
apart.
Rows judge the margin (`margin_auroc`, ...), which is what a verdict carries, and the raw score.

`run_experiment` resumes any other experiment: cases of a key and a job.
"""

from unseen_bench.oracles import ORACLES
from unseen_bench.run.comparison import Comparison, compare, compare_runs
from unseen_bench.run.executors import RunResult, execute, run_all, run_identity
from unseen_bench.run.results import (
    Case,
    ResultFolder,
    Row,
    grouped,
    markdown_table,
    mean,
    mean_and_deviation,
    read_rows,
    run_experiment,
)
from unseen_bench.run.runs import DETECTORS, KINDS, Method, Run, default_detectors, list_runs, with_sweeps
from unseen_bench.run.version import code_version
