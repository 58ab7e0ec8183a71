"""The way around the framework for the two routes that carry the traffic: nothing is matched, solved or validated."""

import re
from collections.abc import Awaitable, Mapping

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from unseen.serve.http.errors import HANDLERS
from unseen.serve.http.middleware import HTTPMiddleware

PATH = re.compile("/v1/streams/([^/]+)/(observe|score)")


class DirectRoutes(HTTPMiddleware):
    """Call the endpoint of a POST to observe or score; the application answers everything else."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, APIRoute]) -> None:
        super().__init__(app)
        self.routes = routes

    def serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        found = PATH.fullmatch(scope["path"]) if scope["method"] == "POST" else None
        if found is None:
            return self.app(scope, receive, send)
        scope["route"] = self.routes[found[2]]
        return self._answer(scope, receive, send, found[1])

    async def _answer(self, scope: Scope, receive: Receive, send: Send, id: str) -> None:
        request = Request(scope, receive)
        try:
            response = await scope["route"].endpoint(request, id)
        except Exception as error:
            handler = next(HANDLERS[kind] for kind in type(error).__mro__ if kind in HANDLERS)
            response = await handler(request, error)
        await response(scope, receive, send)
