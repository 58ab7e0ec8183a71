"""Several instances behind nginx, as deploy/ ships it: streams are divided by id and move between them."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from helpers.service import LABELS, ApiKeys, Client, Remote, Server, create, downloaded, listening_socket, same
from helpers.streams import stream
from unseen.errors import ServiceError

DEPLOY = Path(__file__).parents[2] / "deploy"
Z = stream(LABELS, 40)

pytestmark = pytest.mark.skipif(not shutil.which("nginx"), reason="needs Debian's nginx: apt-get install nginx-light")


def free_ports(count: int) -> list[int]:
    sockets = [listening_socket("127.0.0.1", 0) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Nginx:
    """nginx with the configuration of deploy/, on loopback and without TLS."""

    def __init__(self, folder: Path, port: int) -> None:
        self.file, self.port, self.url = folder / "nginx.conf", port, f"http://127.0.0.1:{port}"
        self.folder = folder

    def run(self, ports: list[int], *signal: str) -> None:
        """Start with instances at these ports, or begin to use them."""
        text = (DEPLOY / "nginx.conf").read_text()
        text = re.sub(
            r"(\s+#? ?server 127.*)+", "".join(f"\nserver 127.0.0.1:{one} max_fails=0;" for one in ports), text, count=1
        )
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{self.port}")
        text = re.sub(r"\n\s+ssl_.*", "", text)
        text = text.replace("/run/nginx.pid", f"{self.folder}/nginx.pid").replace("/var/log/nginx", str(self.folder))
        self.file.write_text(text)
        command = ["nginx", "-p", str(self.folder), "-c", str(self.file), "-e", str(self.folder / "error.log"), *signal]
        subprocess.run(command, check=True, capture_output=True, timeout=30)

    def reload(self, ports: list[int]) -> None:
        """Begin to use instances at these ports; returns when the workers of before have gone."""
        master = (self.folder / "nginx.pid").read_text().strip()
        workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        self.run(ports, "-s", "reload")
        until = time.monotonic() + 30
        while any(Path("/proc", one).exists() for one in workers):
            assert time.monotonic() < until
            time.sleep(0.05)

    def stop(self) -> None:
        self.run([1], "-s", "stop")


class Instances:
    """Services at fixed ports, each with a data folder of its own and the keys of the first."""

    def __init__(self, folder: Path, ports: list[int]) -> None:
        self.data = {port: folder / f"data-{port}" for port in ports}
        self.key = ApiKeys(self.data[ports[0]]).add("*", "admin")
        for other in ports[1:]:
            self.data[other].mkdir(mode=0o700)
            (self.data[other] / "keys.db").symlink_to(self.data[ports[0]] / "keys.db")
        self.running: dict[int, Server] = {}

    def start(self, *ports: int) -> None:
        for port in ports:
            self.running[port] = Server(self.data[port], port=port, behind_proxy=True).ready()

    def stop(self) -> None:
        for port in list(self.running):
            self.running.pop(port).stop()


@pytest.fixture
def cluster(tmp_path):
    tmp_path.chmod(0o755)
    port, *ports = free_ports(4)
    nginx, instances = Nginx(tmp_path, port), Instances(tmp_path, ports)
    yield nginx, instances, ports
    nginx.stop()
    instances.stop()


def place(nginx: Nginx, remote: Remote) -> int:
    answer = httpx.get(f"{nginx.url}/v1/streams/{remote.id}")
    return int(answer.headers["x-unseen-instance"].rpartition(":")[2])


def test_streams_are_divided_over_instances_survive_a_kill_and_move_when_one_is_added(cluster, tmp_path):
    nginx, instances, ports = cluster
    instances.start(*ports[:2])
    nginx.run(ports[:2])
    with Client(nginx.url, instances.key, retries=8) as client:
        remotes = [create(client) for _ in range(12)]
        again = create(client, key="0123456789abcdef0123")
        assert again.id == "0123456789abcdef"
        assert create(client, key="0123456789abcdef0123").id == again.id
        for remote in remotes:
            assert [row["seq"] for row in remote.observe(Z[:20])] == list(range(20))
        places = {remote.id: place(nginx, remote) for remote in remotes}
        assert set(places.values()) == set(ports[:2])
        for port in ports[:2]:
            with Client(instances.running[port].url, instances.key) as direct:
                own = {one["id"] for one in direct.streams()} - {again.id}
                assert own == {id for id, at in places.items() if at == port}

        dead = ports[0]
        instances.running.pop(dead).kill()
        client.retries = 0
        for remote in remotes:
            if places[remote.id] == dead:
                with pytest.raises(ServiceError, match="502"):
                    remote.info()
            else:
                assert remote.observe(Z[20:21], key=f"{remote.id} 20")[0]["seq"] == 20
        instances.start(dead)
        client.retries = 8
        for remote in remotes:
            assert remote.observe(Z[20:21], key=f"{remote.id} 20")[0]["seq"] == 20

        before = {remote.id: downloaded(remote) for remote in remotes}
        nginx.reload(ports)
        instances.stop()
        places_given = [f"127.0.0.1:{port}={instances.data[port]}" for port in ports]
        (instances.data[ports[2]] / "streams").mkdir()
        command = [sys.executable, str(DEPLOY / "move_streams.py"), nginx.url, *places_given]
        moved = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        instances.start(*ports)
        after = Counter(place(nginx, remote) for remote in remotes)
        assert 0 < len(moved) <= len(remotes)
        assert after[ports[2]] > 0
        for remote in remotes:
            assert same(downloaded(remote), before[remote.id])
            assert [row["seq"] for row in remote.observe(Z[21:])] == list(range(21, 40))


@pytest.mark.timing  # a machine so busy that it answers below the rate refuses nobody
def test_strangers_are_stopped_by_nginx(cluster, tmp_path):
    nginx, instances, ports = cluster
    instances.start(ports[0])
    nginx.run(ports[:1])
    for path in ("/v1/streams/0123456789abcdef/events", "/v1/streams"):
        time.sleep(3)  # until a stranger has its share again
        with socket.create_connection(("127.0.0.1", nginx.port), timeout=30) as stranger:
            stranger.sendall(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode() * 400)  # at once, however slow we are
            said = b""
            while said.count(b"HTTP/1.1 ") < 400 and (part := stranger.recv(1 << 16)):
                said += part
        assert said.startswith(b"HTTP/1.1 401")
        assert b"HTTP/1.1 429" in said
    with httpx.Client(base_url=nginx.url) as stranger:
        assert stranger.get("/healthz", headers={"authorization": "x", "x": "y" * 40_000}).status_code == 400
        large = b"x" * (65 << 20)
        assert stranger.post("/v1/streams", content=large, headers={"authorization": "x"}).status_code == 413
    with Client(nginx.url, instances.key) as client:
        assert client.streams() == []
