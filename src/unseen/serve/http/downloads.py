"""Files that are made for one caller: outside the folder of their stream, which may be deleted meanwhile."""

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from unseen.serve.http.bodies import RAW
from unseen.serve.http.service import Service
from unseen.serve.stream.store import StreamEntry


async def download(
    service: Service, entry: StreamEntry, write: Callable[[Path], tuple[str, dict[str, str]]]
) -> Response:
    """Return the file that `write` makes, under the name and with the headers that it returns."""
    # what a kill leaves is removed at the next start
    path = entry.opened.folder.with_name(f".new-export-{time.monotonic_ns()}") / "file"
    try:
        name, headers = await service.run_chore(entry.config.owner, partial(write, path))
    except BaseException:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise
    remove = BackgroundTask(shutil.rmtree, path.parent, ignore_errors=True)
    return FileResponse(path, media_type=RAW, filename=name, headers=headers, background=remove)
