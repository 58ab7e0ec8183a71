"""The first call on a GPU compiles kernels: the log says so, once."""

from __future__ import annotations

import pytest

from unseen.gpu.triton_import import log_compilation


def test_that_kernels_are_compiled_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log_compilation.cache_clear()
    for _ in range(3):
        log_compilation()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("unseen.detectors", "WARNING")
    assert "some ten seconds, once per machine" in record.getMessage()
