"""Triton, or where it is not installed a stand-in with which modules of kernels can be imported, but not run."""

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

IS_INSTALLED = find_spec("triton") is not None
log = logging.getLogger("unseen.detectors")


@cache
def log_compilation() -> None:
    """Log, once per process, that kernels are compiled now: the first call on a machine waits for them in silence."""
    log.warning("compiling GPU kernels: this takes some ten seconds, once per machine")


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number: the sizes of blocks that Triton takes."""
    return 1 << (number - 1).bit_length()


class StandIn:
    """What modules of kernels use of Triton while they are imported."""

    @staticmethod
    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """A function as it is."""
        return function or StandIn.jit

    @staticmethod
    def constexpr(value: Any) -> Any:
        """A constant as it is."""
        return value


if IS_INSTALLED:
    import triton
    import triton.language as tl
else:
    triton = tl = StandIn

__all__ = ["IS_INSTALLED", "log_compilation", "power_of_two", "tl", "triton"]
