"""Files that are made for one caller: outside the folder of their stream, which may be deleted meanwhile."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from unseen.errors import ServiceError
from unseen.serve.http.bodies import RAW
from unseen.serve.http.service import Service
from unseen.serve.stream.store import StreamEntry

Written = tuple[str, dict[str, str]]  # the name of a file, and headers


class Download:
    """A file in a folder of its own, while it is made and sent; an owner has a few of them at once."""

    def __init__(self, service: Service, entry: StreamEntry) -> None:
        self.owner, self.held = entry.config.owner, service.downloads
        if self.held[self.owner] >= service.limits.downloads:
            most = service.limits.downloads
            raise ServiceError(429, f"expected at most {most} downloads at once, got one more; read them", "requests")
        # what a kill leaves is removed at the next start
        self.path = entry.opened.folder.with_name(f".new-export-{time.monotonic_ns()}") / "file"
        self.held[self.owner] += 1

    def end(self) -> None:
        """Remove the file."""
        self.held[self.owner] -= 1
        shutil.rmtree(self.path.parent, ignore_errors=True)


class TemporaryFile(FileResponse):
    """A file that is removed when it was sent, or could not be.

    It is sent as a whole: it was made for this request, and parts of two would not fit together.
    """

    def __init__(self, download: Download, name: str, headers: dict[str, str]) -> None:
        headers = {**headers, "accept-ranges": "none"}
        super().__init__(download.path, media_type=RAW, filename=name, headers=headers)
        self.download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        headers = [(name, value) for name, value in scope["headers"] if name not in (b"range", b"if-range")]
        try:
            await super().__call__({**scope, "headers": headers}, receive, send)
        finally:
            await run_in_threadpool(self.download.end)


async def download(service: Service, entry: StreamEntry, write: Callable[[Path], Written]) -> Response:
    """The file that `write` makes, under the name and with the headers that it returns."""
    made = Download(service, entry)
    try:
        name, headers = await service.run_download(made.owner, partial(write, made.path))
    except BaseException:
        made.end()
        raise
    return TemporaryFile(made, name, headers)
