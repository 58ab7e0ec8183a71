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
from unseen.serve.http.front import Front
from unseen.serve.http.service import Service

WITHOUT: dict[str, Any] = {
    "docs_url": None,  # the page has its own
    "redoc_url": None,
    "redirect_slashes": False,  # to a host of the caller's choice
}
OPENING_SECONDS = 2.0  # that a stop waits for streams that are being opened


def create_app(service: Service) -> FastAPI:
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

    app = FastAPI(title="unseen", version=unseen.__version__, lifespan=lifespan, **WITHOUT)
    app.exception_handlers |= HANDLERS
    app.state.service = service
    app.add_middleware(Front, service=service)
    # as they are: an included router is matched twice for every request
    app.router.routes += [*routes.samples.routes, *routes.router.routes, *discover.router.routes, *page.router.routes]
    return app
