"""The service as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import unseen
from unseen.serve import page
from unseen.serve.demo import feed
from unseen.serve.http import discover, routes
from unseen.serve.http.errors import HANDLERS
from unseen.serve.http.front import Front
from unseen.serve.http.service import Service


def create_app(service: Service, *, demo: bool = False, opening_seconds: float = 2) -> FastAPI:
    """The application around a service; a stop waits so long for streams that are being opened."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        store = service.store
        opening = asyncio.get_running_loop().run_in_executor(store.threads.keeper, store.open_all)
        feeding = asyncio.create_task(feed(service)) if demo else None
        yield
        if feeding:
            feeding.cancel()
        service.end_listening()
        await asyncio.wait([opening], timeout=opening_seconds)  # a long replay starts again next time
        await service.close()

    version = unseen.__version__
    app = FastAPI(
        title="unseen", version=version, lifespan=lifespan, docs_url=None, redoc_url=None, exception_handlers=HANDLERS
    )
    app.router.redirect_slashes = False  # to a host of the caller's choice
    app.state.service = service
    app.add_middleware(Front, service=service)
    # as they are: an included router is matched twice for every request
    app.router.routes += [*routes.plain.routes, *routes.router.routes, *discover.router.routes, *page.router.routes]
    return app
