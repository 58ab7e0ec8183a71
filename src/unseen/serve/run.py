"""Run the service in this process until a signal ends it."""

import gc
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from unseen.errors import SettingError
from unseen.serve.http.app import create_app
from unseen.serve.http.auth import refuse_open_address
from unseen.serve.http.service import Service
from unseen.serve.settings import Limits, Settings


def run(settings: Settings, *, port: int, demo: bool, announce: Callable[[str], object]) -> None:
    """Bind, say where, and serve; refuse an address that others can reach without nginx in front."""
    refuse_open_address(settings)
    raise_file_limit()
    sys.setswitchinterval(0.0005)  # a thread is back from torch or SQLite dozens of times a block
    service = Service(settings)
    app = create_app(service, demo=demo)
    hush_libraries()
    listener = listening_socket(settings.host, port, settings.limits)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    announce(f"unseen serves http://{host}:{listener.getsockname()[1]} from {settings.data}")
    # what is imported stays: without this the collector walks through all of torch while requests wait
    gc.collect()
    gc.freeze()
    Server(server_config(app, settings), service).run(sockets=[listener])


def server_config(app: object, settings: Settings) -> uvicorn.Config:
    """How the server takes requests: one after another on a connection, with bounds on what waits."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        proxy_headers=settings.behind_proxy,
        http="h11",  # does not read on while it answers
        h11_max_incomplete_event_size=settings.limits.headers,
        limit_concurrency=settings.limits.connections,
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
        server_header=False,
    )


class Server(uvicorn.Server):
    """A server that ends responses without end before it waits for the others, and ends in time whatever runs."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, at the latest after some seconds: what was acknowledged is on disk, the rest need not be waited for."""
        timer = threading.Timer(self.service.settings.durability.end_seconds, os._exit, [0])
        timer.daemon = True
        timer.start()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: end the listeners, answer what was asked, close."""
        self.service.end_listening()
        await super().shutdown(sockets)


def hush_libraries() -> None:
    """Keep libraries from writing a line for every bad request: strangers would fill the log."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def raise_file_limit() -> None:
    """Let the process open as many files as it may: a stream in use holds three, a connection one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listening_socket(host: str, port: int, limits: Limits | None = None) -> socket.socket:
    """A socket that listens at an address; the system ends connections whose caller takes nothing of its answer."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            seconds = (limits or Limits()).write_seconds
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise SettingError(f"expected a free address, got {host}:{port} ({error}); choose another --port") from error
    return listener
