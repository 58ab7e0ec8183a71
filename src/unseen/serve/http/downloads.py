"""Files that are made for one caller: outside the folder of their stream, which may be deleted meanwhile."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from unseen.serve.http.bodies import RAW
from unseen.serve.http.service import Service
from unseen.serve.stream.store import StreamEntry


class TemporaryFile(FileResponse):
    """A file in a folder of its own, which is removed when it was sent, or could not be.

    It is sent as a whole: it was made for this request, and parts of two would not fit together.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        headers = [(name, value) for name, value in scope["headers"] if name not in (b"range", b"if-range")]
        try:
            await super().__call__({**scope, "headers": headers}, receive, send)
        finally:
            await run_in_threadpool(shutil.rmtree, Path(self.path).parent, ignore_errors=True)


async def download(
    service: Service, entry: StreamEntry, write: Callable[[Path], tuple[str, dict[str, str]]]
) -> Response:
    """The file that `write` makes, under the name and with the headers that it returns."""
    # what a kill leaves is removed at the next start
    path = entry.opened.folder.with_name(f".new-export-{time.monotonic_ns()}") / "file"
    try:
        name, headers = await service.run_chore(entry.config.owner, partial(write, path))
    except BaseException:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise
    return TemporaryFile(path, media_type=RAW, filename=name, headers={**headers, "accept-ranges": "none"})
