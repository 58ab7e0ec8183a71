"""Vectors that people already have: npy, npz, Lance, Parquet with other names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.errors import DataError
from unseen.features import load_features

Z = torch.nn.functional.normalize(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), dim=1)
KEYS = [f"{n}.jpg" for n in range(5)]


def write(path, **columns):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"embedding": Z.tolist(), "id": KEYS, **columns})
    if path.suffix == ".lance":
        pytest.importorskip("lance").write_dataset(table, str(path))
    else:
        arrow.parquet.write_table(table, path)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "b.npz", "a.lance", "a.parquet"])
def test_vectors_are_read_with_their_keys(tmp_path, name):
    path, has_keys = tmp_path / name, name != "a.npy" and name != "a.npz"
    if name == "a.npy":
        np.save(path, Z.numpy())
    elif name == "a.npz":
        np.savez(path, Z.numpy())
    elif name == "b.npz":
        np.savez(path, features=Z.numpy(), keys=np.array(KEYS), labels=np.arange(5))
    else:
        write(path)
    found = load_features(path)
    assert torch.allclose(found.z, Z)
    assert list(found.keys) == (KEYS if has_keys else [f"a/{n}" for n in range(5)])
    assert found.labels is None or found.labels.tolist() == list(range(5))


def test_a_pickle_is_never_opened(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "b.npz").write_bytes(b"junk")
    for name in ("a.npy", "b.npz"):
        with pytest.raises(DataError, match="expected an array of numbers"):
            load_features(tmp_path / name)


def test_keys_must_be_as_many_as_rows(tmp_path):
    np.savez(tmp_path / "a.npz", features=Z.numpy(), keys=np.array(KEYS[:2]))
    with pytest.raises(DataError, match="expected 5 keys"):
        load_features(tmp_path / "a.npz")
