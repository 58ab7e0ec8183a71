"""A real S3 server: sources read, features written, what happens when it is not there or says no."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from helpers import s3
from helpers.pictures import encoded, png, tar_of
from helpers.tiny_models import pictures, save_clip
from unseen.encoders import load_encoder
from unseen.errors import SettingError, StoreError
from unseen.features import FeatureCache, encode_images, load_features
from unseen.features.shards import read_shards
from unseen.images import find_images
from unseen.storage.remote import location

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # with make test-ray
COUNT = 24


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, s3.server() as found:
        for name, value in s3.CREDENTIALS.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_clip(tmp_path_factory.mktemp("model"))


def put(endpoint: str, path: str, data: bytes) -> str:
    location(s3.uri(endpoint, path)).write_bytes(data)
    return s3.uri(endpoint, path)


@pytest.fixture(scope="module")
def sources(endpoint: str) -> list[str]:
    """Put a folder, a tar and a table into the bucket."""
    files = [encoded(image.pixels) for image in pictures(3 * COUNT)]
    for number, data in enumerate(files[:COUNT]):
        put(endpoint, f"photos/{number:02d}.png", data)
    packed = tar_of({f"{number:02d}.png": data for number, data in enumerate(files[COUNT : 2 * COUNT])})
    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"image": files[2 * COUNT :]}), table)
    shards = [put(endpoint, "a.tar", packed), put(endpoint, "b.parquet", table.getvalue())]
    return [s3.uri(endpoint, "photos"), *shards]


def command(model: Path, sources: list[str], output: str, *more: str) -> list[str]:
    asked = ["encode", *sources, "--encoder", str(model), "-o", output, "--device", "cpu", "--json", *more]
    return [sys.executable, "-m", "unseen", *asked]


def test_a_killed_command_is_finished_on_ray_and_no_credential_is_printed(endpoint, model, sources, tmp_path):
    output = s3.uri(endpoint, "features")
    first = subprocess.Popen(command(model, sources, output, "--batch", "4"), stdout=subprocess.DEVNULL)
    while not any(one.name.endswith(".safetensors") for one in location(output).files()):
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    already = sum(len(rows) for _, rows in read_shards(location(output)))
    words = command(model, sources, output, "--ray", "local", "--batch", "16")
    with tempfile.TemporaryDirectory() as logs:  # short, as names of sockets must be
        done = subprocess.run(words, env=os.environ | {"RAY_TMPDIR": logs}, capture_output=True, text=True, timeout=600)
        written = b"".join(path.read_bytes() for path in Path(logs).rglob("*") if path.is_file())
    assert done.returncode == 0, done.stderr[-1000:]
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert (summary["already"], summary["encoded"]) == (already, 3 * COUNT - already)
    assert b"session" in written
    secrets = s3.CREDENTIALS.values()
    assert not any(secret in done.stdout + done.stderr or secret.encode() in written for secret in secrets)
    encoder = load_encoder(model, device="cpu")
    list(encode_images(find_images(sources), encoder, FeatureCache(tmp_path, encoder)))
    here, there = load_features(tmp_path), load_features(output)
    assert sorted(there.keys) == sorted(here.keys)
    place = {key: row for row, key in enumerate(here.keys)}
    z = here.z[[place[key] for key in there.keys]]
    assert torch.linalg.vector_norm(z - there.z, dim=1).max() < 1e-3


def test_a_store_that_is_not_there_and_one_that_refuses_are_told_apart(monkeypatch):
    for name, value in s3.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match="check endpoint, region and network"):
        list(find_images(s3.uri(f"http://127.0.0.1:{s3.free_port()}", "photos")))
    with s3.server(INITIAL_NO_AUTH_ACTION_COUNT="1") as strict:  # making the bucket was the one
        for work in (lambda place: place.exists(), lambda place: place.write_bytes(png(3))):
            with pytest.raises(StoreError, match="check key and rights") as found:
                work(location(s3.uri(strict, "photos/a.png")))
            assert s3.CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(found.value)


def test_credentials_in_a_uri_are_refused_and_not_repeated():
    with pytest.raises(SettingError, match="credentials in the environment") as found:
        location("s3://key:secret-word@bucket/photos")
    assert "secret-word" not in str(found.value)
