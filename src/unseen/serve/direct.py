"""Answer the two routes that carry the traffic before the framework looks for a route: the rest is still its own.

The same functions stand in the framework's table, which is where the API's document comes from.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from unseen.serve.front import answer_to

PATH = re.compile(r"/v1/streams/([^/]+)/(observe|score)")

Handler = Callable[[Request], Awaitable[Response]]


class Direct:
    """Call a handler for `POST /v1/streams/{id}/VERB`, and the application for everything else."""

    def __init__(self, app: ASGIApp, handlers: Mapping[str, Handler]) -> None:
        self.app, self.handlers = app, handlers
        self._routes = {verb: SimpleNamespace(path=f"/v1/streams/{{id}}/{verb}") for verb in handlers}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        scope["path_params"], scope["route"] = {"id": found[1]}, self._routes[found[2]]
        request = Request(scope, receive, send)
        try:
            response = await self.handlers[found[2]](request)
        except Exception as error:
            response = await answer_to(request, error)
        await response(scope, receive, send)
