"""Readers: every kind of source, every kind of pixel, every kind of damage."""

import io
import sys
import tarfile
import time
from functools import partial

import numpy as np
import pytest
from PIL import Image as Pillow

from unseen.errors import DataError, ImageError, MissingExtra, SettingError
from unseen.images import Entry, Skipped, find_images, read_entries, read_images, sources
from unseen.images import decode as decoding
from unseen.images.decode import decode

RED, GREEN = (200, 30, 40), (20, 180, 60)


def data(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def flat(colour=RED, size=(8, 6), mode="RGB"):
    return Pillow.new(mode, size, colour)


def centre(picture):
    return picture.getpixel((picture.width // 2, picture.height // 2))


def only(source, **options):
    (batch,) = read_images(source, **options)
    return batch


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/two.png", "a.JPG", "b/one.webp", ".hidden.png"):
        flat().save(tmp_path / name, {"JPG": "JPEG"}.get(name[-3:], name.rpartition(".")[2]))
    (tmp_path / "notes.md").write_text("not a picture")
    return tmp_path


def test_exif_orientation_is_applied():
    left_red = Pillow.new("RGB", (8, 4), RED)
    left_red.paste(GREEN, (4, 0, 8, 4))
    exif = Pillow.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    upright = decode(data(left_red, exif=exif))
    assert upright.size == (4, 8)
    assert upright.getpixel((2, 1)) == RED
    assert upright.getpixel((2, 6)) == GREEN


def test_grey_becomes_three_equal_channels():
    assert centre(decode(data(flat(77, mode="L")))) == (77, 77, 77)


def test_black_and_white_becomes_rgb():
    assert centre(decode(data(flat(1, mode="1")))) == (255, 255, 255)


@pytest.mark.parametrize("alpha", [0, 255])
def test_alpha_lies_on_white_paper(alpha):
    expected = RED if alpha else (255, 255, 255)
    assert centre(decode(data(flat((*RED, alpha), mode="RGBA")))) == expected


def test_grey_with_alpha_lies_on_white_paper():
    assert centre(decode(data(flat((10, 0), mode="LA")))) == (255, 255, 255)


def test_palette_with_and_without_transparency():
    palette = flat().convert("P", palette=Pillow.Palette.ADAPTIVE)
    assert centre(decode(data(palette))) == RED
    assert centre(decode(data(palette, transparency=palette.getpixel((0, 0))))) == (255, 255, 255)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (65535, 255), (32896, 128), (300, 1)])
def test_sixteen_bits_are_scaled_not_clipped(value, expected):
    deep = Pillow.fromarray(np.full((6, 8), value, dtype=np.uint16))
    assert centre(decode(data(deep))) == (expected,) * 3
    assert centre(decode(data(deep, "TIFF"))) == (expected,) * 3


def test_cmyk_becomes_rgb():
    red, green, blue = centre(decode(data(flat((0, 255, 255, 0), mode="CMYK"), "JPEG")))
    assert red > 200
    assert max(green, blue) < 60


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_animated_files_give_their_first_frame(kind):
    first = decode(data(flat(RED), kind, save_all=True, append_images=[flat(GREEN)]))
    assert np.abs(np.subtract(centre(first), RED)).max() < 12


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "empty file"),
        (b"hello, I am no picture", "not an image Pillow can read"),
        (data(Pillow.effect_noise((64, 64), 50).convert("RGB"), "JPEG")[:-400], "damaged: .*truncated"),
        (data(Pillow.effect_noise((64, 64), 50), "PNG")[:-600], "damaged"),
        (data(flat(0.5, mode="F"), "TIFF"), "floating-point pixels have no agreed range"),
        (data(flat(1 << 20, mode="I"), "TIFF"), "32-bit pixels have no agreed range"),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "float", "32 bit"],
)
def test_bad_pictures_are_refused_with_a_reason(bad, reason):
    with pytest.raises(ImageError, match=reason):
        decode(bad)


@pytest.mark.parametrize("limit", ["ours", "pillow's"])
def test_decompression_bombs_are_refused(monkeypatch, limit):
    monkeypatch.setattr(*((decoding, "MAX_PIXELS", 40) if limit == "ours" else (Pillow, "MAX_IMAGE_PIXELS", 20)))
    with pytest.raises(ImageError, match="too large"):
        decode(data(flat()))


def test_a_folder_is_read_recursively_in_order(folder):
    batch = only(folder)
    assert [image.path for image in batch] == [str(folder / name) for name in ("a.JPG", "b/one.webp", "b/two.png")]
    assert all(image.pixels.mode == "RGB" and image.label is None for image in batch)


def test_globs_files_and_several_sources(folder):
    assert len(only(f"{folder}/**/*.png")) == 1
    assert len(only(folder / "a.JPG")) == 1
    assert [len(batch) for batch in read_images([folder / "a.JPG", folder / "b"], size=2)] == [2, 1]


def test_unreadable_images_are_reported_in_place_and_never_replaced(folder):
    (folder / "b/broken.png").write_bytes(data(flat())[:40])
    batch = only(folder)
    assert len(batch) == 3
    assert [type(row).__name__ for row in batch.rows] == ["Image", "Skipped", "Image", "Image"]
    assert batch.skipped[0].path.endswith("broken.png")
    assert batch.skipped[0].reason


def test_a_batch_is_a_sequence_of_images(folder):
    batch = only(folder)
    assert [image.path for image in batch[1:]] == [batch[1].path, batch[2].path]


def test_image_lists_carry_labels(folder):
    (folder / "list.txt").write_text("a.JPG 7\nb/two.png -1\n\nb/one.webp\ngone.png 3\nwith space.png 4\n")
    flat().save(folder / "with space.png")
    batch = only(folder / "list.txt")
    assert [image.label for image in batch] == ["7", "-1", None, "4"]
    assert batch.skipped == (Skipped(str(folder / "gone.png"), "cannot be opened: No such file or directory"),)


def test_image_lists_may_start_elsewhere(folder, tmp_path_factory):
    listing = tmp_path_factory.mktemp("lists") / "val.txt"
    listing.write_text("b/two.png 1\n", encoding="utf-8-sig")
    assert len(only(listing, root=folder)) == 1


def test_image_lists_in_other_encodings_are_refused(tmp_path):
    (tmp_path / "list.txt").write_text("a.png 1", encoding="utf-16")
    with pytest.raises(DataError, match="expected an image list in UTF-8"):
        only(tmp_path / "list.txt")


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as tar:
        for i, label in enumerate(["cat", "dog"]):
            for name, content in ((f"{i}.jpg", data(flat(), "JPEG")), (f"{i}.txt", label.encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
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


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(DataError, match="expected at least one image, got none"):
        find_images(tmp_path)


def test_a_missing_path_is_an_error(tmp_path):
    with pytest.raises(DataError, match="got nothing at"):
        find_images(tmp_path / "gone")


@pytest.mark.parametrize("setting", [{"size": 0}, {"stride": 0}])
def test_settings_have_a_range(folder, setting):
    with pytest.raises(SettingError, match="at least 1"):
        next(read_images(folder, **setting))


def test_threads_keep_the_order():
    def slowly(i):
        time.sleep(0.002 * (i % 3))
        return flat((i, 0, 0))

    entries = [Entry(str(i), str(i), partial(slowly, i)) for i in range(60)]
    batches = list(read_entries(entries, size=7))
    assert [image.pixels.getpixel((0, 0))[0] for batch in batches for image in batch] == list(range(60))
    assert [len(batch) for batch in batches] == [7] * 8 + [4]


def test_decoding_does_not_run_far_ahead():
    decoded = []
    entries = (Entry(str(i), "", lambda: decoded.append(1) or flat()) for i in range(1000))
    reader = read_entries(entries, size=1)
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert len(decoded) <= 8 * sources.WORKERS


def test_video_frames(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as video:
        stream = video.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for _ in range(5):
            video.mux(stream.encode(av.VideoFrame.from_image(flat(size=(32, 32)))))
        video.mux(stream.encode())
    batch = only(path, stride=2)
    assert [image.path for image in batch] == [f"{path}#0", f"{path}#2", f"{path}#4"]
    assert np.abs(np.subtract(centre(batch[0].pixels), RED)).max() < 20


def test_a_damaged_video_is_refused(tmp_path):
    pytest.importorskip("av")
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match="expected a video"):
        only(tmp_path / "clip.mp4")


@pytest.mark.parametrize(("package", "name"), [("av", "clip.mp4"), ("PIL.Image", "a.png")])
def test_missing_packages_are_named(tmp_path, monkeypatch, package, name):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match="pip install"):
        only(tmp_path / name)
