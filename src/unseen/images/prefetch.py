"""Work that threads do before its results are asked for: in order, and only so far in advance."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from unseen.errors import SettingError

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(
    work: Callable[[Item], Result], items: Iterable[Item], *, workers: int, most: int, name: str
) -> Generator[Result, None, None]:
    """Yield `work` of each item in order; at most `most` items beyond the one that is waited for have been begun."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix=name)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_lists(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of `size`, the last one perhaps shorter.

    >>> list(in_lists("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    if size < 1:
        raise SettingError(f"expected a batch size of at least 1, got {size}; try 64")
    source = iter(items)
    while some := list(islice(source, size)):
        yield some


def usable_cores() -> int:
    """How many cores this process may use, which in a container may be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
