"""How a long task tells its caller how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]  # units done, units in all


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""
