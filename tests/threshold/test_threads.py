"""Thresholds are the same bits with any number of threads: workers of a cluster have other numbers than one machine."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import torch
from unseen.threshold import Adaptive
generator = torch.Generator().manual_seed(0)
margin = torch.cat([9 + 5 * torch.randn(300, generator=generator), 3 * torch.randn(300, generator=generator) - 4])
margin, rule = margin[torch.randperm(600, generator=generator)], Adaptive(derives_baseline=True)
for pieces in ([1] * 20 + [30, 50, 100, 400], [300, 300], [600]):
    state = rule.start()
    for part in margin.split(pieces):
        decisions, state = rule.learn(state, part)
        print([column.double().sum().item().hex() for column in decisions[:2]])
"""


def thresholds(threads: int) -> str:
    names = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
    environment = os.environ | dict.fromkeys(names, str(threads))
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return run.stdout


def test_thresholds_are_the_same_bits_with_one_thread_and_with_two():
    assert thresholds(1) == thresholds(2)
