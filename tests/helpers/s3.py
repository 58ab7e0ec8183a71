"""An S3 server of its own process, moto's, on a free port of this machine; it forgets everything when it ends.

It lives in an environment of its own (`make .s3/ready`), because its client library asks for an older python-dateutil.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

REPO = Path(__file__).parents[2]
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key-of-a-test", "AWS_SECRET_ACCESS_KEY": "secret-of-a-test"}
BUCKET = "bucket"


@contextmanager
def server(**environment: str) -> Iterator[str]:
    """Yield the endpoint of a server with one empty bucket; skip where none is installed and nobody asked for one."""
    command = os.environ.get("UNSEEN_S3_SERVER", str(REPO / ".s3/bin/moto_server"))
    if "UNSEEN_S3_SERVER" not in os.environ and not Path(command).exists():
        pytest.skip("no S3 server here; make test-ray sets one up")
    port = free_port()
    process = subprocess.Popen(
        [command, "-H", "127.0.0.1", "-p", str(port)],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        wait_for(port, process)
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
        yield endpoint
    finally:
        process.kill()
        process.wait()


def uri(endpoint: str, path: str) -> str:
    """The URI of a path in the bucket."""
    return f"s3://{BUCKET}/{path}?scheme=http&region=us-east-1&endpoint_override={quote(endpoint, safe='')}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the S3 server ended"
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the S3 server did not start within a minute")
