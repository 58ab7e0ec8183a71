"""unseen calibrate, and detect --calibrate, with an encoder that knows colours only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.commands import detect, rows, run
from helpers.pictures import save_shade
from helpers.tiny_models import NamedColours
from unseen import Session
from unseen.cli import app
from unseen.errors import DataError, EncoderError, SettingError, StateError

pytestmark = pytest.mark.usefixtures("encoder", "photos", "known")

NAMES = ("--label", "red", "--label", "green")
STATE = ("--state", "s.safetensors")


def session() -> Session:
    return Session.load("s.safetensors")


def test_a_state_is_calibrated_with_photos(known: Path) -> None:
    detect("photos", *NAMES, *STATE)
    words = " ".join(run("calibrate", "known", *STATE).stderr.split())
    assert "calibrated with 30 known images at image 12 of the stream" in words
    assert "a new known image is kept with probability at least 95 %" in words
    assert "20 images: 86.1 to 99.7 %" in words
    assert "warning" not in words
    assert int(session().snapshot.tally.seen) == 12
    assert "calibrated with 30 known images at" not in detect("photos", *STATE).stderr
    (known / "red" / "broken.png").write_bytes(b"x")
    (row,) = rows(run("calibrate", "known", *STATE, "--recall", "0.9", "--json", code=1))
    assert row["calibration"].keys() == {"images", "recall", "conformal", "threshold", "low", "high", "at"}
    assert row["calibration"]["threshold"] <= row["calibration"]["conformal"]
    assert (row["calibration"]["images"], row["calibration"]["at"], row["skipped"]) == (30, 12, 1)


def test_detect_calibrates_as_the_stream_grows_and_counts_broken_photos(known: Path) -> None:
    (known / "red" / "broken.png").write_bytes(b"x")
    result = detect("photos", *NAMES, "--calibrate", "known", *STATE, "--batch", "4", code=1)
    assert "calibrated with 30 known images at image 0 of the stream" in result.stderr
    assert "skipped 1" in result.stderr
    assert "~" not in result.stdout
    assert int(session().snapshot.threshold.at) == 12
    detect("photos", *STATE, "--recall", "0.95")
    detect("photos", *STATE, "--recall", "0.9", "--calibrate", "known", code=1)
    with pytest.raises(SettingError, match="--recall and --threshold"):
        detect("photos", *STATE, "--recall", "0.5")


def test_too_few_calibration_photos_say_which_were_broken(known: Path) -> None:
    for path in (known / "red").iterdir():
        path.write_bytes(b"x")
    result = CliRunner().invoke(app, ["detect", "photos", *NAMES, "--calibrate", "known"])
    assert "expected at least 19 known images for a recall of 0.95, got 15" in str(result.exception)
    assert result.stderr.count("skipped: ") == 15


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (("photos",), SettingError, "at least 19 known images for a recall of 0.95, got 12"),
        (("known", "--recall", "0.99"), SettingError, "at least 99 known images"),
        (("known", "--recall", "0"), SettingError, "expected a recall between 0 and 1"),
        (("known", "--recall", "95"), SettingError, "write 0.95 for 95 %"),
        (("empty",), DataError, "at least one image, got none in empty"),
        (("nowhere",), DataError, "got nothing at nowhere"),
    ],
)
def test_bad_calibration_is_refused_before_anything_is_encoded(
    tmp_path: Path, encoder: NamedColours, options: tuple[str, ...], error: type[Exception], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=words):
        run("calibrate", *options, *STATE)
    with pytest.raises(error, match=words):
        detect("photos", *NAMES, "--calibrate", *options)
    assert encoder.calls == 0


def test_a_state_that_is_not_there_and_two_ways_to_set_the_threshold_are_refused() -> None:
    with pytest.raises(StateError, match="expected a state to calibrate, got no file"):
        run("calibrate", "known", *STATE)
    with pytest.raises(SettingError, match="--calibrate or --threshold"):
        detect("photos", *NAMES, "--calibrate", "known", "--threshold", "1")


def test_photos_that_look_unknown_are_named(known: Path) -> None:
    detect("photos", *NAMES, *STATE, "--threshold", "0")
    for i in range(10):
        save_shade(known / "sea" / f"{i}.png", (0, 2 * i, 255))
    words = " ".join(run("calibrate", "known", *STATE).stderr.split())
    assert "10 of 40 calibration images look unknown" in words
    assert re.search(r"the lowest are known/sea/\d.png", words)
    assert "these folders carry none of the known names: sea" in words


def test_another_encoder_is_refused(encoder: NamedColours) -> None:
    detect("photos", *NAMES, *STATE)
    encoder.fingerprint = "other"
    with pytest.raises(EncoderError, match="expected the encoder of this label space"):
        run("calibrate", "known", *STATE)
