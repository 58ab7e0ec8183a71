"""Images and names over the API, and work shared fairly between owners."""

from __future__ import annotations

import base64
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch.nn.functional import normalize

from helpers.pictures import encoded
from helpers.service import INSIDE, LABELS, ApiKeys, Client, Rounding, Server, create, serving
from helpers.streams import stream
from helpers.tiny_models import pictures, save_clip
from unseen import LabelSpace, Session, load_encoder, read_images
from unseen.detectors import MCM
from unseen.errors import ServiceError

NAMES = ["cat", "dog", "nice photo"]

IMAGES = pictures(12)
FILES = [encoded(image.pixels) for image in IMAGES]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"), context=40)


@pytest.fixture(scope="module")
def server(clip, tmp_path_factory):
    with Server(tmp_path_factory.mktemp("images"), encoder=str(clip)) as running:
        running.client.http.timeout = 120
        yield running


@pytest.fixture(scope="module")
def remote(server):
    return server.client.create(names=NAMES, relatives=0, everyday=0, detector="mcm")


@pytest.fixture(scope="module")
def expected(clip):
    encoder = load_encoder(str(clip))
    session = Session(MCM(LabelSpace.build(NAMES, encoder, relatives=0, everyday=0)))
    return session.score(encoder.images(IMAGES))


def margins(rows) -> list[float]:
    return [row["margin"] for row in rows]


def test_uploaded_files_get_the_verdicts_of_a_session(remote, expected):
    said = remote.observe(FILES)
    assert margins(said) == pytest.approx(expected.margin.tolist(), abs=1e-4)
    assert [row["nearest"] for row in said] == [NAMES[i] for i in expected.output.label]


def test_base64_gets_the_same_verdicts_as_files_and_numbers(server, remote, expected):
    def score(**content):
        return server.client.http.post(f"/v1/streams/{remote.id}/score", json=content).json()

    def text_of(data: bytes) -> str:
        return base64.b64encode(data).decode()

    texts = [text_of(data) for data in FILES]
    texts[1] = f"data:image/png;base64,{texts[1]}"
    assert margins(score(images=texts)["verdicts"]) == pytest.approx(expected.margin.tolist(), abs=1e-4)
    z = normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    packed = text_of(z.numpy().astype("<f4").tobytes())
    found, plain = (score(features=x)["verdicts"] for x in (packed, z.tolist()))
    assert margins(found) == pytest.approx(margins(plain), abs=1e-5)
    assert "whole rows" in score(features=packed[:-4])["message"]


def test_a_bad_image_is_skipped_by_name_and_the_others_are_judged(remote):
    seq = remote.info()["seq"]
    names = [*"abcd", "bad.png", "empty.jpg", *"ef"]
    said = remote.observe([*FILES[:4], b"junk", b"", *FILES[4:6]], keys=names)
    assert [row["key"] for row in said] == names
    assert said[4] == {"key": "bad.png", "skipped": "not an image of a supported format"}
    assert said[5] == {"key": "empty.jpg", "skipped": "empty file"}
    assert remote.info()["seq"] == seq + 6
    with pytest.raises(ServiceError, match=r"got bad.png: not an image"):
        remote.observe([b"junk"], keys=["bad.png"])


def test_the_client_takes_what_a_session_takes(remote, expected, tmp_path):
    (tmp_path / "a.png").write_bytes(FILES[0])
    by_path = remote.score([tmp_path / "a.png"])
    assert by_path[0]["key"] == str(tmp_path / "a.png")
    (batch,) = read_images(tmp_path)
    pixels = np.asarray(IMAGES[0].pixels)
    for form in (str(tmp_path / "a.png"), FILES[:1], IMAGES[:1], IMAGES[0].pixels, pixels, batch, {"image": FILES[0]}):
        assert margins(remote.score(form)) == pytest.approx(expected.margin[:1].tolist(), abs=1e-4)
    z = normalize(torch.ones(2, 8), dim=-1)
    assert [row["key"] for row in remote.score(z, keys=["x", "y"])] == ["x", "y"]
    assert margins(remote.score(z.tolist())) == pytest.approx(margins(remote.score(z.numpy())))


def test_the_thumbnail_of_an_observed_image_is_served(server, remote):
    first = remote.observe(FILES[:1])[0]["seq"]
    answer = server.client.http.get(f"/v1/streams/{remote.id}/pictures/{first}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.content.startswith(b"\xff\xd8")
    past = server.client.http.get(f"/v1/streams/{remote.id}?recent=true").json()["recent"]["latest"]
    assert past[-1]["seq"] == first
    assert past[-1]["pictured"]
    assert server.client.http.get(f"/v1/streams/{remote.id}/pictures/99999").status_code == 404


def test_a_retried_upload_is_recognised_by_its_files_although_vectors_round_differently(tmp_path):
    with serving(tmp_path / "data", Rounding(LABELS.dim)) as url, Client(url) as client:
        remote = create(client)
        first = remote.observe(FILES[:3], key="again")
        assert remote.observe(FILES[:3], key="again") == first
        assert remote.info()["seq"] == 3
        with pytest.raises(ServiceError, match="idempotency key"):
            remote.observe(FILES[1:4], key="again")


@pytest.mark.timing
def test_uploads_of_one_owner_do_not_delay_another(tmp_path):
    made = ApiKeys(tmp_path)
    mine, theirs = (made.add(owner, "admin") for owner in ("a", "b"))
    encoder = Rounding(LABELS.dim, 0.05)
    with serving(tmp_path, encoder) as url, Client(url, mine) as one, Client(url, theirs) as other:
        busy, quick = create(one), create(other)
        with ThreadPoolExecutor(1) as pool:
            upload = pool.submit(busy.observe, FILES * 6)  # nine chunks
            while not encoder.calls:
                time.sleep(0.01)
            for z in stream(LABELS, 5).split(1):
                quick.observe(z)
                quick.info()
            assert len(quick.observe(FILES[:2])) == 2
            assert not upload.done(), "the other owner had to wait for all of it"
            assert len(upload.result()) == len(FILES) * 6
    assert max(encoder.sizes) <= INSIDE.images


@pytest.mark.timing
@pytest.mark.parametrize("size", [(1, 50_000), (49_999_999, 1)])
def test_a_narrow_image_is_refused_at_once(remote, size):
    file = encoded(Pillow.new("1", size))
    remote.score([FILES[0]])  # the first image waits for what decodes it
    started = time.perf_counter()
    with pytest.raises(ServiceError, match="too narrow") as caught:
        remote.observe([file])
    assert caught.value.status == 422
    assert time.perf_counter() - started < 5
