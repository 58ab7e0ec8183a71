"""Uploaded forms: what clients send is read, what is no form is refused, and nothing of it is done on the loop."""

from __future__ import annotations

import base64
import threading

import httpx
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from helpers.streams import space
from unseen.errors import ServiceError
from unseen.serve.http import bodies, forms, sockets
from unseen.serve.http.app import create_app
from unseen.serve.http.forms import HEADER, UploadedFile, parse_form
from unseen.serve.http.service import Service
from unseen.serve.settings import Settings
from unseen.serve.stream.config import StreamConfig

LABELS = space(dtype=torch.float32)
MEDIA = "multipart/form-data; boundary=x"
PART = b'--x\r\ncontent-disposition: form-data; name="images"; filename="a"\r\n\r\n'
TEXT = b'--x\r\ncontent-disposition: form-data; name="%d"\r\n\r\n1\r\n'


@pytest.mark.parametrize("data", [b"", b"\r\n", b"a\r\n--y\r\n--", bytes(range(256)) * 300], ids=repr)
def test_files_and_texts_come_as_a_client_sent_them(data):
    files = [("images", ("\u0645 ö.jpg", data)), ("images", ("b", b"1")), ("space", ("s", data))]
    request = httpx.Request("POST", "http://a", files=files, data={"stream": '{"name": "ö"}'})
    form = parse_form(request.read(), request.headers["content-type"], 3)
    assert form.files == {
        "images": [UploadedFile("\u0645 ö.jpg", data), UploadedFile("b", b"1")],
        "space": [UploadedFile("s", data)],
    }
    assert form.texts == {"stream": '{"name": "ö"}'}


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"", MEDIA),
        (b"--x", MEDIA),
        (PART + b"1", MEDIA),
        (PART[:-4] + b"\r\n--x--", MEDIA),
        (b"preamble\r\n" + PART + b"1\r\n--x--", MEDIA),
        (b"--x\r\ncontent-disposition: form-data\r\n\r\n1\r\n--x--", MEDIA),
        (b"--x\r\n" + b"a: b\r\n" * HEADER + b"\r\n1\r\n--x--", MEDIA),
        (PART + b"1\r\n--x--", "multipart/form-data"),
        (PART + b"1\r\n--x--", "multipart/form-data; boundary=" + "x" * 71),
        (b"".join(TEXT % n for n in range(17)) + b"--x--", MEDIA),
        (TEXT % 1 * 17 + b"--x--", MEDIA),
    ],
    ids=[
        *("empty", "start", "no end", "no content", "preamble", "no name", "headers", "no boundary", "long", "texts"),
        "equal texts",
    ],
)
def test_what_is_no_whole_form_is_refused(body, media):
    with pytest.raises(ServiceError, match="expected a whole form") as caught:
        parse_form(body, media, 2)
    assert caught.value.status == 400


def test_too_many_files_are_refused():
    assert len(parse_form((PART + b"1\r\n") * 2 + b"--x--", MEDIA, 2).files["images"]) == 2
    with pytest.raises(ServiceError, match="1 to 2 files") as caught:
        parse_form((PART + b"1\r\n") * 3 + b"--x--", MEDIA, 2)
    assert (caught.value.status, caught.value.code) == (413, "batch")


@given(
    name=st.binary(min_size=1, max_size=20),
    filename=st.binary(max_size=20),
    rest=st.sampled_from([b"", b"\r\nContent-Type: image/png", b"\r\ncontent-length: 3", b"; filename*=UTF-8''b"]),
)
@example(name=b"images", filename=b"a.jpg", rest=b"")
@example(name=b"images", filename=b"a\\b.jpg", rest=b"\r\nContent-Type: image/png")
def test_the_usual_header_of_a_file_is_read_as_any_other(name, filename, rest):
    header = b'\r\nContent-Disposition: form-data; name="' + name + b'"; filename="' + filename + b'"' + rest
    read = forms._disposition(header)
    general = header.replace(b"form-data; ", b"form-data;  ", 1)  # not as clients write it
    assert forms.USUAL.fullmatch(general) is None
    assert read == forms._disposition(general)


def test_base64_of_several_parts_is_read_and_padding_inside_it_is_not():
    data = bytes(range(256)) * 300
    code = base64.b64encode(data).decode()
    assert len(code) > bodies.PART
    assert bodies._from_base64("it", code) == data
    for bad in (code[:99] + "*" + code[100:], code[: bodies.PART - 4] + "MQ==" + code, code + "a"):
        with pytest.raises(ServiceError, match="base64"):
            bodies._from_base64("it", bad)


@pytest.fixture
def opened(tmp_path):
    service = Service(Settings(tmp_path, encoder=None))
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        id = service.store.create(LABELS, StreamConfig("", "", "*", "mcm")).config.id
        yield client, f"/v1/streams/{id}"


def noting_threads(monkeypatch, module, name: str) -> list[str]:
    work, names = getattr(module, name), list[str]()

    def noted(*given):
        names.append(threading.current_thread().name)
        return work(*given)

    monkeypatch.setattr(module, name, noted)
    return names


def test_a_form_is_parsed_away_from_the_loop(opened, monkeypatch):
    client, path = opened
    threads = noting_threads(monkeypatch, bodies, "parse_form")
    body = (PART + b"q\r\n") * 2000 + b"--x--\r\n"
    headers = {"content-type": MEDIA}
    assert client.post(f"{path}/score", content=body, headers=headers).status_code == 422
    assert [name.split("_")[0] for name in threads] == ["parse"]


def test_a_large_body_of_any_route_is_parsed_in_its_owner_s_turn(opened, monkeypatch):
    client, path = opened
    threads = noting_threads(monkeypatch, bodies, "parse_json")
    body = {"name": "x" * bodies.AT_ONCE, "new": "y"}
    assert client.post(f"{path}/rename", json=body).status_code in (409, 422)
    assert [name.split("_")[0] for name in threads] == ["parse"]


def test_json_in_a_message_is_parsed_away_from_the_loop_and_learned_in_order(opened, monkeypatch):
    client, path = opened
    threads = noting_threads(monkeypatch, sockets, "message_samples")
    row = LABELS.id_anchors[:1]
    with client.websocket_connect(f"{path}/observe", headers={"host": "127.0.0.1"}) as socket:
        socket.send_json({"features": row.tolist(), "keys": ["first"]})
        socket.send_bytes(row.numpy().tobytes())
        socket.send_text("{")
        socket.send_json({"features": row.tolist()})
        answers = [socket.receive_json() for _ in range(4)]
    assert [answer.get("verdicts", [{}])[0].get("seq") for answer in answers] == [0, 1, None, 2]
    assert answers[2]["code"] == "invalid"
    assert [name.startswith("parse") for name in threads] == [True, False, True, True]
