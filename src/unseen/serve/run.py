"""Run the service in this process until a signal ends it."""

import gc
import logging
import os
import resource
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn

from unseen.errors import SettingError
from unseen.serve import demo as demonstration
from unseen.serve.http.app import create_app
from unseen.serve.http.auth import refuse_open_address
from unseen.serve.http.protocol import ConnectionRoom, LimitedProtocol
from unseen.serve.http.service import Service
from unseen.serve.http.sockets import MESSAGE
from unseen.serve.settings import Settings

BACKLOG = 1024  # connections that the system keeps until they are taken
STOP_SECONDS = 9.0  # from a signal to the end of the process, at most
SWITCH_INTERVAL = 0.0005  # seconds


def run(settings: Settings, *, port: int, demo: bool, announce: Callable[[str], object]) -> None:
    """Bind, say where, and serve; refuse an address that others can reach while there is no key."""
    refuse_open_address(settings)
    raise_file_limit()
    # how long a thread back from torch or SQLite waits for one that runs Python, dozens of times a block; usually 5 ms
    sys.setswitchinterval(SWITCH_INTERVAL)
    service = Service(settings)
    app = create_app(service)
    if demo:
        demonstration.attach(app)
    hush_libraries()
    listener = listening_socket(settings.host, port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    announce(f"unseen serves http://{host}:{listener.getsockname()[1]} from {settings.data}")
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        http=partial(LimitedProtocol, limits=settings.limits, room=ConnectionRoom(settings.limits)),  # type: ignore[arg-type]
        ws="websockets-sansio",
        ws_max_size=MESSAGE,
        ws_per_message_deflate=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
        server_header=False,
    )
    # what is imported stays: without this the collector walks through all of torch while requests wait
    gc.collect()
    gc.freeze()
    Server(config, service).run(sockets=[listener])


class Server(uvicorn.Server):
    """A server that ends responses without end before it waits for the others, and ends in time whatever runs."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, at the latest after STOP_SECONDS: what was acknowledged is on disk, the rest need not be waited for."""
        timer = threading.Timer(STOP_SECONDS, os._exit, [0])
        timer.daemon = True
        timer.start()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: end the listeners, answer what was asked, close."""
        self.service.events.close()
        await super().shutdown(sockets)


def hush_libraries() -> None:
    """Keep libraries from writing a line for every bad request: strangers would fill the log."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong with an image is in the answer
    warnings.filterwarnings("ignore", module=r"PIL\.")  # each of another text would stay in memory too
    server = logging.getLogger("uvicorn.error")
    server.setLevel(logging.ERROR)
    server.addFilter(_is_worth_a_line)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("ASGI callable returned")  # for a refused WebSocket, which was answered


def raise_file_limit() -> None:
    """Let the process open as many files as it may: a stream in use holds three, a connection one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise SettingError(f"expected a free address, got {host}:{port} ({error}); choose another --port") from error
    return listener
