"""Images in tars, with labels beside them."""

import pytest

from helpers.pictures import encoded, flat, tar_of
from unseen.errors import DataError
from unseen.images import find_images, read_entries, read_images


def only(source, **options):
    (batch,) = read_images(source, **options)
    return batch


@pytest.fixture
def shard(tmp_path):
    photo, path = encoded(flat(), "JPEG"), tmp_path / "shard.tar"
    path.write_bytes(tar_of({"0.jpg": photo, "0.txt": b"cat", "1.jpg": photo, "1.txt": b"dog"}))
    return path


def test_webdataset_shards_carry_labels(shard):
    batch = only(shard)
    assert [(image.path, image.label) for image in batch] == [(f"{shard}/0.jpg", "cat"), (f"{shard}/1.jpg", "dog")]
    assert batch[0].identity != batch[1].identity


def test_a_damaged_shard_is_refused(tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"not a tar" * 100)
    with pytest.raises(DataError, match="expected a tar of images"):
        only(tmp_path / "bad.tar")


def test_a_shard_that_ends_early_skips_its_last_image(shard):
    entries = find_images(shard)
    shard.write_bytes(shard.read_bytes()[:600])
    (batch,) = read_entries(entries)
    assert len(batch) == 0
    assert all(row.reason.startswith("damaged: archive ends") for row in batch.skipped)


def test_compressed_shards_are_refused(tmp_path):
    (tmp_path / "shard.tar.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"expected an uncompressed \.tar"):
        only(tmp_path / "shard.tar.gz")
