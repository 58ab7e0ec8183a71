"""Frames of videos."""

import numpy as np
import pytest

from helpers.pictures import RED, centre, save_video
from unseen.errors import DataError
from unseen.images import read_images

pytest.importorskip("av")


def only(source, **options):
    (batch,) = read_images(source, **options)
    return batch


def test_every_nth_frame_of_a_video_is_read(tmp_path):
    path = tmp_path / "clip.mp4"
    save_video(path, [RED] * 5)
    batch = only(path, stride=2)
    assert [image.path for image in batch] == [f"{path}#0", f"{path}#2", f"{path}#4"]
    assert np.abs(np.subtract(centre(batch[0].pixels), RED)).max() < 20


def test_a_damaged_video_is_refused(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match="expected a video"):
        only(tmp_path / "clip.mp4")
