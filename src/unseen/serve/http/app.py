"""The service as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

import unseen
from unseen.serve import page
from unseen.serve.http import discover, routes
from unseen.serve.http.errors import HANDLERS
from unseen.serve.http.middleware import (
    AdmissionMiddleware,
    BodyLimitMiddleware,
    HeadMiddleware,
    RecordMiddleware,
    SecurityMiddleware,
)
from unseen.serve.http.service import Service

WITHOUT: dict[str, Any] = {
    "docs_url": None,  # the page has its own
    "redoc_url": None,
    "redirect_slashes": False,  # to a host of the caller's choice
    "telemetry": {"tracing": False, "metrics": False, "logs": False},  # asked for at every request
}


OPENING_SECONDS = 2.0  # that a stop waits for streams that are being opened


def create_app(service: Service) -> FastAPI:
    """Return the application around a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        store = service.store
        opening = asyncio.get_running_loop().run_in_executor(store.threads.keeper, store.open_all)
        yield
        store.stopping = True
        service.events.close()
        await asyncio.wait([opening], timeout=OPENING_SECONDS)  # a long replay starts again next time
        await service.close()

    app = FastAPI(
        title="unseen",
        version=unseen.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.exception_handlers |= HANDLERS
    app.state.service = service
    # the last one added runs first
    app.add_middleware(HeadMiddleware)
    app.add_middleware(BodyLimitMiddleware, limits=service.limits)
    app.add_middleware(AdmissionMiddleware, limits=service.limits, key_of=service.key_of)
    app.add_middleware(SecurityMiddleware, needs_key=service.needs_key)
    app.add_middleware(RecordMiddleware, metrics=service.metrics, log=service.log)
    # as they are: an included router is matched twice for every request
    app.router.routes += [*routes.plain.routes, *routes.router.routes, *discover.router.routes, *page.router.routes]
    return app
