"""Sources: folders, globs, lists, and the order in which threads decode them."""

import io
import os
import re
import sys

import pytest

from helpers.pictures import encoded, flat
from unseen.errors import DataError, MissingExtra, SettingError
from unseen.images import Entry, Skipped, decode, find_images, read_entries, read_images, sources
from unseen.storage.remote import RemotePath


def only(source, **options):
    (batch,) = read_images(source, **options)
    return batch


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".thumbnails").mkdir()
    for name in ("b/two.png", "a.JPG", "b/one.webp", ".hidden.png", ".thumbnails/a.png"):
        flat().save(tmp_path / name, {"JPG": "JPEG"}.get(name[-3:], name.rpartition(".")[2]))
    (tmp_path / "notes.md").write_text("not a picture")
    return tmp_path


def test_a_folder_is_read_recursively_in_order(folder):
    batch = only(folder)
    assert [image.path for image in batch] == [str(folder / name) for name in ("a.JPG", "b/one.webp", "b/two.png")]
    assert all(image.pixels.mode == "RGB" and image.label is None for image in batch)


def test_globs_single_files_and_several_sources_are_read(folder):
    assert len(only(f"{folder}/**/*.png")) == 1
    assert len(only(folder / "a.JPG")) == 1
    assert [len(batch) for batch in read_images([folder / "a.JPG", folder / "b"], size=2)] == [2, 1]


def test_unreadable_images_are_reported_in_place_and_never_replaced(folder):
    (folder / "b/broken.png").write_bytes(encoded(flat())[:40])
    batch = only(folder)
    assert len(batch) == 3
    assert [type(row).__name__ for row in batch.rows] == ["Image", "Skipped", "Image", "Image"]
    assert batch.skipped[0].path.endswith("broken.png")
    assert batch.skipped[0].reason


def test_image_lists_carry_labels(folder):
    (folder / "list.txt").write_text("a.JPG 7\nb/two.png -1\n\nb/one.webp\ngone.png 3\nwith space.png 4\n")
    flat().save(folder / "with space.png")
    batch = only(folder / "list.txt")
    assert [image.label for image in batch] == ["7", "-1", None, "4"]
    assert batch.skipped == (Skipped(str(folder / "gone.png"), "cannot be opened: No such file or directory"),)


def test_names_of_classes_given_as_an_image_list_are_refused(folder):
    (folder / "classes.txt").write_text("golden retriever\nsports car 2000\n" + 300 * "long ")
    with pytest.raises(DataError, match=r"'golden retriever'\); pass names of classes as --labels .*classes.txt"):
        only(folder / "classes.txt")


def test_image_lists_in_other_encodings_are_refused(tmp_path):
    (tmp_path / "list.txt").write_text("a.png 1", encoding="utf-16")
    with pytest.raises(DataError, match="expected an image list in UTF-8"):
        only(tmp_path / "list.txt")


@pytest.mark.parametrize("setting", [{"size": 0}, {"stride": 0}])
def test_settings_have_a_range(folder, setting):
    with pytest.raises(SettingError, match="at least 1"):
        next(read_images(folder, **setting))


def test_decoding_does_not_run_far_ahead():
    decoded = []
    entries = (Entry(str(i), "", lambda: decoded.append(1) or flat()) for i in range(1000))
    reader = read_entries(entries, size=1)
    next(reader)
    reader.close()  # type: ignore[attr-defined]
    assert len(decoded) <= 8 * sources.WORKERS


@pytest.mark.parametrize(("package", "name"), [("av", "clip.mp4"), ("PIL.Image", "a.png")])
def test_missing_packages_are_named(tmp_path, monkeypatch, package, name):
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match="pip install"):
        only(tmp_path / name)


def test_renamed_files_are_read_by_content_and_others_are_counted(folder):
    for kind in ("JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP", "AVIF"):
        (folder / f"download-{kind}").write_bytes(encoded(flat(size=(16, 16)), kind))
    (folder / "wrong.png").write_bytes(encoded(flat(), "JPEG"))
    (folder / "empty").touch()
    (folder / "film.mp4").write_bytes(b"\0\0\0\x18ftypmp42\0\0\0\0")
    (folder / "labels.json").write_bytes(encoded(flat()))  # its name says that it is none
    found = find_images(folder)
    assert isinstance(found, sources.FoundEntries)
    assert found.others == 4  # notes.md, empty, film.mp4, labels.json
    assert len(only(folder)) == 3 + 7 + 1


def test_photos_of_phones_are_read_whatever_they_are_called(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    data = io.BytesIO()
    pillow_heif.from_pillow(flat((200, 30, 40), (64, 48))).save(data, quality=90)
    for name in ("a.heic", "b.jpg", "c"):
        (tmp_path / name).write_bytes(data.getvalue())
    batch = only(tmp_path)
    assert [image.pixels.size for image in batch] == [(64, 48)] * 3
    assert abs(batch[0].pixels.getpixel((30, 20))[0] - 200) < 12


def test_a_photo_of_a_phone_without_the_extra_is_skipped_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    decode._heif_format.cache_clear()
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0")
    (skipped,) = only(tmp_path).skipped
    assert re.match(r"HEIC image: expected .*\[heic\].* pip install", skipped.reason)


def test_linked_folders_are_read_once_and_loops_end(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    flat().save(elsewhere / "far.png")
    (folder / "c").symlink_to(elsewhere)
    (folder / "b/loop").symlink_to(folder)
    assert [image.path for image in only(folder)] == [
        str(folder / name) for name in ("a.JPG", "b/one.webp", "b/two.png", "c/far.png")
    ]


def test_a_folder_that_cannot_be_opened_is_skipped_with_a_reason(folder, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    batch = only(folder)
    assert [image.path for image in batch] == [str(folder / "a.JPG")]
    assert [one.path for one in batch.skipped] == [str(folder / "b")]
    assert batch.skipped[0].reason.startswith("cannot be opened")


def test_a_pipe_in_a_folder_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe.jpg")
    os.mkfifo(folder / "pipe")  # by content it would be opened
    (batch,) = read_images(folder)
    assert [one.reason for one in batch.skipped if one.path.endswith("pipe.jpg")] == [
        "not a file: a pipe, socket or device"
    ]


def test_names_that_are_no_utf8_have_a_key_that_is(tmp_path):
    (tmp_path / "caf\udce9.png").write_bytes(encoded(flat()))
    assert [image.path for image in only(tmp_path)] == [f"{tmp_path}/caf\\udce9.png"]


@pytest.mark.parametrize("error", [MissingExtra("pyarrow", "tables"), DataError("expected a URI that fsspec can open")])
def test_so_it_is_without_the_drivers_of_object_stores(monkeypatch, error):
    def missing(self):
        raise error

    monkeypatch.setattr(RemotePath, "exists", missing)
    with pytest.raises(DataError, match=r"a\.jpg; download the images first"):
        find_images("https://example.com/a.jpg")
    with pytest.raises(type(error), match=re.escape(str(error))):
        find_images("s3://bucket/photos")
