"""Tests of kernels that run on a CPU, by Triton's interpreter."""

import os
from importlib.util import find_spec

import pytest

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None,
    reason="needs Triton and TRITON_INTERPRET=1",
)
