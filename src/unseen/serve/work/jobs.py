"""Work that may outlast a request: started once, watched, cancelled, and remembered for a while."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from unseen.errors import ServiceError, UnseenError

log = logging.getLogger("unseen.serve")


@dataclass
class Job:
    """One piece of work of an owner; `request` is equal for the same request sent twice."""

    owner: str
    id: str
    request: str = ""
    stage: str = "waiting"  # what is being done, in a word
    done: int = 0  # of `total` units of the stage; 0 of 0 where they are not counted
    total: int = 0
    started: float = field(default_factory=time.time)
    result: Any = None
    error: Exception | None = None  # why the job failed
    task: asyncio.Task[None] | None = None
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def progress(self, done: int, total: int) -> None:
        """Note how far the work is; end the work of a job that was cancelled."""
        if self._cancelled.is_set():
            raise cancelled()
        self.done, self.total = done, total

    def cancel(self) -> None:
        """End the job; work in a thread ends when it next tells its progress."""
        self._cancelled.set()
        if self.task:
            self.task.cancel()

    @property
    def status(self) -> str:
        """Whether the job runs, is done, failed, or was cancelled."""
        if self.task is None or not self.task.done():
            return "running"
        return "cancelled" if self.task.cancelled() else "failed" if self.error else "done"

    def found(self) -> Any:
        """What a job that has ended made; raise why another made nothing."""
        if self.status != "done":
            raise self.error or cancelled()
        return self.result

    async def run(self, work: Callable[[Job], Awaitable[Any]]) -> None:
        """Do the work; keep why it fails, but nothing of what it had in hand."""
        try:
            self.result = await work(self)
        except Exception as error:
            if not isinstance(error, UnseenError):
                log.exception("unexpected in a job")
            # by its traceback an error holds on to every upload and label space on its way
            error.__traceback__ = error.__cause__ = error.__context__ = None
            self.error = error

    async def wait(self, seconds: float) -> bool:
        """Whether the job ended within some seconds; it goes on if its caller leaves."""
        assert self.task is not None
        return bool((await asyncio.wait([self.task], timeout=seconds))[0])


class Jobs:
    """The jobs of all owners: `each` may run at once for one of them, the latest `kept` ended ones are remembered."""

    def __init__(self, each: int, *, kept: int = 64) -> None:
        self._each, self._kept = each, kept
        self._jobs: dict[str, Job] = {}

    def start(self, owner: str, request: str, work: Callable[[Job], Awaitable[Any]], id: str) -> Job:
        """The job with an id, started unless the same request started it before."""
        found = self._jobs.get(id)
        if found and found.owner != owner:
            raise ServiceError(409, f"expected the id of no job, got {id}; ask with another", "conflict")
        if found and found.status in ("running", "done"):
            refuse_other_request(found.request, request)
            return found
        if sum(job.status == "running" for job in self.owned(owner)) >= self._each:
            raise ServiceError(429, f"expected at most {self._each} jobs at once, got one more; wait for one", "jobs")
        job = self._jobs[id] = Job(owner, id, request)
        job.task = asyncio.ensure_future(job.run(work))
        job.task.add_done_callback(lambda _: self._forget(owner))
        return job

    def owned(self, owner: str) -> Iterator[Job]:
        """Yield the jobs of one owner, oldest first."""
        return (job for job in list(self._jobs.values()) if job.owner == owner)

    def find(self, owner: str, id: str) -> Job:
        """One job; to others than its owner it does not exist."""
        job = self._jobs.get(id)
        if job is None or job.owner != owner:
            raise ServiceError(404, "expected the id of one of your jobs, got another; they are kept for a while only")
        return job

    def close(self) -> None:
        """Cancel every job that runs."""
        for job in self._jobs.values():
            if job.status == "running":
                job.cancel()

    def _forget(self, owner: str) -> None:
        """Forget the oldest ended jobs of an owner with too many."""
        ended = [job.id for job in self.owned(owner) if job.status != "running"]
        for id in ended[: -self._kept]:
            del self._jobs[id]


def refuse_other_request(before: str, now: str) -> None:
    """Refuse an idempotency key that came with another request before."""
    if before != now:
        what = "expected the request this idempotency key came with first, got another; use a new key"
        raise ServiceError(422, what, "key_reused")


def cancelled() -> UnseenError:
    """The error of a job that was cancelled."""
    return ServiceError(409, "expected a job that runs to its end, got one that was cancelled; start another")
