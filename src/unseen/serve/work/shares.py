"""A quantity that owners share: so much in all, so much for one other than the operator."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from unseen.errors import ServiceError
from unseen.serve.settings import EVERYONE


class Shares:
    """Count what each owner holds; refuse what is over its share, or over what there is."""

    def __init__(self, *, total: int, each: int, what: str, code: str = "") -> None:
        self.total, self.each, self.what, self.code = total, each, what, code
        self.taken: Counter[str] = Counter()

    def take(self, owner: str, amount: int, *, reserve: int = 0) -> None:
        """Count `amount` as held by an owner, leaving `reserve` of the whole for others."""
        if owner != EVERYONE and self.taken[owner] + amount > self.each:
            raise ServiceError(
                429,
                f"expected at most {self.each:,} {self.what} of one caller at once, got more; wait for answers",
                self.code,
            )
        if self.taken.total() + amount > self.total - reserve:
            raise ServiceError(
                503,
                f"expected at most {self.total - reserve:,} {self.what} of all callers at once, got more; try again",
            )
        self.taken[owner] += amount

    def give_back(self, owner: str, amount: int) -> None:
        """Count `amount` as free again."""
        self.taken[owner] -= amount
        if not self.taken[owner]:
            del self.taken[owner]

    @contextmanager
    def held(self, owner: str, amount: int, *, reserve: int = 0) -> Iterator[None]:
        """Hold `amount` for a while."""
        self.take(owner, amount, reserve=reserve)
        try:
            yield
        finally:
            self.give_back(owner, amount)
