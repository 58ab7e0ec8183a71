"""The service as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

import unseen
from unseen.serve import page
from unseen.serve.http import discover, routes
from unseen.serve.http.direct import DirectRoutes
from unseen.serve.http.errors import HANDLERS
from unseen.serve.http.middleware import (
    AdmissionMiddleware,
    BodyLimitMiddleware,
    DefectMiddleware,
    HeadMiddleware,
    OriginMiddleware,
    RecordMiddleware,
)
from unseen.serve.http.service import Service

WITHOUT: dict[str, Any] = {
    "docs_url": None,  # the page has its own
    "redoc_url": None,
    "redirect_slashes": False,  # to a host of the caller's choice
    "telemetry": {"tracing": False, "metrics": False, "logs": False},  # asked for at every request
}


OPENING_SECONDS = 2.0  # that a stop waits for streams that are being opened


class ServiceApp(FastAPI):
    """The application of one service, behind what runs before every route."""

    front: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["app"] = self
        await self.front(scope, receive, send)

    @property
    def framework(self) -> ASGIApp:
        """What answers by routes: without `front`."""
        return super().__call__


def create_app(service: Service) -> ServiceApp:
    """The application around a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        store = service.store
        opening = asyncio.get_running_loop().run_in_executor(store.threads.keeper, store.open_all)
        yield
        store.stopping = True
        service.events.close()
        await asyncio.wait([opening], timeout=OPENING_SECONDS)  # a long replay starts again next time
        await service.close()

    app = ServiceApp(title="unseen", version=unseen.__version__, lifespan=lifespan, **WITHOUT)
    app.exception_handlers |= HANDLERS
    app.state.service = service
    # the last one added runs first
    app.add_middleware(DefectMiddleware)
    app.add_middleware(HeadMiddleware)
    # as they are: an included router is matched twice for every request
    app.router.routes += [*routes.router.routes, *discover.router.routes, *page.router.routes]
    app.front = front(app, service)
    return app


def front(app: ServiceApp, service: Service) -> ASGIApp:
    """What runs before every route, around the application."""
    frequent = (route for route in app.routes if isinstance(route, APIRoute) and route.methods == {"POST"})
    direct = {route.name: route for route in frequent if route.name in ("observe", "score")}
    limited = BodyLimitMiddleware(DirectRoutes(app.framework, direct), limits=service.limits)
    admitted = AdmissionMiddleware(limited, service.limits, service.key_of, service.activity)
    return RecordMiddleware(OriginMiddleware(admitted, service.needs_key), service.metrics, service.log)
