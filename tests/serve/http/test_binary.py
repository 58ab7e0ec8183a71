"""Samples as safetensors, Arrow and single image files; what is malformed or expands is refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.streams import space, stream
from unseen.errors import FeatureError
from unseen.serve.http.binary import from_arrow, from_safetensors, is_plain

LABELS = space(dtype=torch.float32)
Z = stream(LABELS, 5)


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
    z, keys = from_arrow(GOOD)
    assert np.array_equal(z, Z)
    assert keys == list("abcde")
    lists = pyarrow.table({"features": Z.double().tolist()})
    assert np.allclose(from_arrow(arrow(lists))[0], Z)


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
        b"",
    ],
    ids=["compressed", "dictionary", "no column", "ragged", "null", "empty"],
)
def test_an_arrow_stream_that_is_not_plain_features_is_refused(body):
    with pytest.raises(FeatureError, match="expected"):
        from_arrow(body)


def test_compression_is_seen_in_the_message_alone():
    for compression, plain in ((None, True), ("lz4", False)):
        messages = list(pyarrow.ipc.MessageReader.open_stream(arrow(table(), compression=compression)))
        assert is_plain(bytes(messages[-1].metadata)) is plain


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([GOOD, SAFE]), st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_altered_bytes_are_read_or_refused(body, at, bytes_):
    at %= len(body)
    for read in (from_arrow, from_safetensors):
        with contextlib.suppress(FeatureError):
            read(body[:at] + bytes_ + body[at + len(bytes_) :])
