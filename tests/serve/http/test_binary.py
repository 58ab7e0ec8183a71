"""Samples as safetensors, Arrow and single image files; what is malformed or expands is refused."""

from __future__ import annotations

import contextlib
import json
import struct
from functools import partial

import numpy as np
import pyarrow
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from helpers.streams import space, stream
from unseen.errors import FeatureError, ServiceError
from unseen.serve.http.app import create_app
from unseen.serve.http.binary import from_arrow, from_safetensors, is_plain
from unseen.serve.http.service import Service
from unseen.serve.settings import Settings
from unseen.serve.stream.config import StreamConfig

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 5)
MOST = 2048


def arrow(table: pyarrow.Table, **options) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def table(z=Z, **more) -> pyarrow.Table:
    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(z.flatten().numpy()), z.shape[1])
    return pyarrow.table({"features": rows, **more})


GOOD = arrow(table(key=list("abcde")))
SAFE = safetensors.torch.save({"features": Z})


def test_arrow_gives_features_and_keys():
    z, keys = from_arrow(GOOD, MOST)
    assert np.array_equal(z, Z)
    assert keys == list("abcde")
    lists = pyarrow.table({"features": Z.double().tolist()})
    assert np.allclose(from_arrow(arrow(lists), MOST)[0], Z)


def test_safetensors_gives_features_of_any_float():
    assert np.array_equal(from_safetensors(SAFE), Z)
    assert np.allclose(from_safetensors(safetensors.torch.save({"features": Z.half()})), Z, atol=1e-3)


@pytest.mark.parametrize(
    "body",
    [
        arrow(table(torch.zeros(4096, 16)), compression="zstd"),
        arrow(pyarrow.table({"features": pyarrow.array(["a", "a"]).dictionary_encode()})),
        arrow(pyarrow.table({"other": [1.0]})),
        arrow(pyarrow.table({"features": [[1.0], [1.0, 2.0]]})),
        arrow(pyarrow.table({"features": [[1.0, None]]})),
        arrow(pyarrow.table({"features": [1, 2]})),
        arrow(pyarrow.table({"features": pyarrow.nulls(2)})),
        arrow(pyarrow.table({"features": [{"a": 1.0}]})),
        arrow(pyarrow.table({"features": pyarrow.RunEndEncodedArray.from_arrays([9], [1.0])})),
        b"",
    ],
    ids=["compressed", "dictionary", "no column", "ragged", "null", "numbers", "nulls", "structs", "runs", "empty"],
)
def test_an_arrow_stream_that_is_not_plain_features_is_refused(body):
    with pytest.raises(FeatureError, match="expected"):
        from_arrow(body, MOST)


def test_an_arrow_stream_of_more_rows_than_its_bytes_is_refused_before_it_is_expanded():
    rows = 10_000_000  # as many as their type allows would take 25 GB
    none = pyarrow.FixedSizeListArray.from_buffers(
        pyarrow.list_(pyarrow.float32(), 0), rows, [None], children=[pyarrow.array([], pyarrow.float32())]
    )
    nulls = pyarrow.Array.from_buffers(pyarrow.null(), rows, [None])
    body = arrow(pyarrow.table({"features": none, "key": nulls}))
    assert len(body) < 2000
    with pytest.raises(ServiceError, match="1 to 2048 samples") as caught:
        from_arrow(body, MOST)
    assert (caught.value.status, caught.value.code) == (413, "batch")


def test_an_arrow_stream_of_very_many_empty_batches_is_refused():
    empty, sink = table().to_batches()[0].slice(0, 0), pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, empty.schema) as writer:
        for _ in range(MOST + 1):
            writer.write_batch(empty)
    with pytest.raises(ServiceError, match="at most 2048 batches") as caught:
        from_arrow(sink.getvalue().to_pybytes(), MOST)
    assert caught.value.status == 413


def with_tensors(count: int) -> bytes:
    """A safetensors file that has many tensors without a number beside its features."""
    size = Z.nbytes
    header = {"features": {"dtype": "F32", "shape": list(Z.shape), "data_offsets": [0, size]}}
    header |= {str(n): {"dtype": "F32", "shape": [0], "data_offsets": [size, size]} for n in range(count)}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + Z.numpy().tobytes()


def test_a_file_of_very_many_tensors_is_refused_before_it_is_opened(tmp_path):
    service = Service(Settings(tmp_path, encoder=None))
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        path = f"/v1/streams/{service.store.create(LABELS, StreamConfig('', '', '*', 'mcm')).config.id}"
        files = {"application/vnd.safetensors": "score", "application/octet-stream": "restore"}
        for count, expected in ((10, [200, 422, 422]), (50_000, [413, 413, 413])):
            body = with_tensors(count)
            answers = [
                client.post(f"{path}/{verb}", content=body, headers={"content-type": media})
                for media, verb in files.items()
            ]
            answers.append(client.post("/v1/streams", files={"space": body}))
            assert [answer.status_code for answer in answers] == expected
    assert {answer.json()["code"] for answer in answers} == {"values"}


def test_compression_is_seen_in_the_message_alone():
    for compression, plain in ((None, True), ("lz4", False)):
        messages = list(pyarrow.ipc.MessageReader.open_stream(arrow(table(), compression=compression)))
        assert is_plain(bytes(messages[-1].metadata)) is plain


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([GOOD, SAFE]), st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_altered_bytes_are_read_or_refused(body, at, bytes_):
    at %= len(body)
    for read in (partial(from_arrow, most=MOST), from_safetensors):
        with contextlib.suppress(FeatureError):
            read(body[:at] + bytes_ + body[at + len(bytes_) :])
