"""Files that are written whole or not at all, and tensors with a checksum."""

import pytest
import torch

from unseen.errors import StateError
from unseen.storage.files import load_tensors, replacing, save_tensors


def test_a_file_is_replaced_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "deep" / "file"
    with replacing(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(str(1 / 0))
    assert path.read_text() == "first"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_tensors_and_header_come_back_as_written(tmp_path):
    save_tensors(tmp_path / "t", {"z": torch.eye(2)}, kind="test", header="{}")
    tensors, header = load_tensors(tmp_path / "t", kind="test")
    assert torch.equal(tensors["z"], torch.eye(2))
    assert header == "{}"


def test_missing_damaged_altered_and_other_files_are_refused(tmp_path):
    path = tmp_path / "t"
    with pytest.raises(StateError, match="got no file"):
        load_tensors(path, kind="test")
    save_tensors(path, {"z": torch.eye(2)}, kind="test", header="{}")
    with pytest.raises(StateError, match=r"expected a state file .* got test"):
        load_tensors(path, kind="state")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"!")
    with pytest.raises(StateError, match="checksum differs"):
        load_tensors(path, kind="test")
    path.write_bytes(data[:-1])
    with pytest.raises(StateError, match="damaged"):
        load_tensors(path, kind="test")
