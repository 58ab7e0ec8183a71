"""How a long task reports its progress to its caller."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]  # units done, units in all


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


@contextmanager
def shown_progress(unit: str, progress: Progress | None = None) -> Iterator[Progress]:
    """Yield `progress`, or, where the caller gave none, a bar on stderr if a person is watching."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if progress is not None or not (console.is_terminal or console.is_jupyter):
        yield progress or no_progress
        return
    columns = BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(unit, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
