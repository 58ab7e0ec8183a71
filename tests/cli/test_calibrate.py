"""unseen calibrate, and detect --calibrate, with an encoder that knows colours only."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.commands import detect, rows, run
from helpers.pictures import save_shade
from helpers.tiny_models import COLOURS, NamedColours
from unseen import Session
from unseen.errors import DataError, SettingError, StateError

pytestmark = pytest.mark.usefixtures("encoder", "photos", "known")

NAMES = ("--label", "red", "--label", "green")
STATE = ("--state", "s.safetensors")


def session() -> Session:
    return Session.load("s.safetensors")


def test_photos_of_known_names_tell_the_threshold_and_are_told_once(known: Path) -> None:
    detect("photos", *NAMES, *STATE)
    before = session().threshold
    said = run("calibrate", "known", *STATE).stderr
    assert "30 photos of known names · threshold" in said
    assert "would call 8 of 12 kept images known" in said
    assert "warning" not in said
    after = session()
    assert (after.rule.name, len(after.told.z), int(after.snapshot.tally.seen)) == ("adaptive", 30, 12)
    assert after.threshold != before
    (known / "red" / "broken.png").write_bytes(b"x")
    (row,) = rows(run("calibrate", "known", *STATE, "--json", code=1))
    assert (len(session().told.z), row["skipped"], row["calibration"]["odd"]) == (30, 1, [])
    assert row["calibration"]["threshold"] == session().threshold == pytest.approx(after.threshold)


def test_a_few_photos_are_enough_unless_a_guarantee_is_wanted(encoder: NamedColours) -> None:
    detect("photos", *NAMES, *STATE)
    for i in range(3):
        save_shade(Path("few") / f"{i}.png", COLOURS["red"], 2 * i)
    assert "3 photos of known names · threshold" in run("calibrate", "few", *STATE).stderr
    assert len(session().told.z) == 3
    calls = encoder.calls
    with pytest.raises(SettingError, match=r"at least 19 known images for a recall of 0\.95, got 3"):
        run("calibrate", "few", *STATE, "--guarantee")
    assert encoder.calls == calls


def test_a_guarantee_says_what_it_promises_and_what_it_costs() -> None:
    detect("photos", *NAMES, *STATE)
    said = " ".join(run("calibrate", "known", *STATE, "--guarantee").stderr.split())
    assert "guaranteed by 30 photos: a new known image is kept with probability at least 95 %" in said
    assert "20 photos: 86.1 to 99.7 %" in said
    assert "would call 8 of 12 kept images known, 8 before" in said
    (row,) = rows(run("calibrate", "known", *STATE, "--guarantee", "--recall", "0.9", "--json"))
    found = row["calibration"]
    assert (found["images"], found["recall"], found["guarantee"], found["of"]) == (30, 0.9, True, 12)
    assert found["threshold"] == session().threshold
    assert "(keeps at least 90 % of known: guaranteed by 30 photos)" in detect("photos", *STATE).stderr
    run("calibrate", "known", *STATE)
    assert (session().rule.name, session().rule.settings["recall"]) == ("adaptive", 0.9)


def test_detect_is_told_by_photos_and_renews_a_guarantee_as_the_stream_grows(known: Path) -> None:
    (known / "red" / "broken.png").write_bytes(b"x")
    result = detect("photos", *NAMES, "--calibrate", "known", *STATE, batch=4, code=1)
    assert "30 photos of known names · threshold" in result.stderr
    assert "skipped 1" in result.stderr
    assert len(session().told.z) == 30
    detect("photos", *STATE, "--calibrate", "known", code=1)
    assert len(session().told.z) == 30
    run("calibrate", "known", *STATE, "--guarantee", code=1)
    save_shade(Path("photos") / "more.png", COLOURS["red"], 40)
    assert int(session().snapshot.threshold.at) == 12
    said = detect("photos", *STATE, "--calibrate", "known", code=1).stderr
    assert "guaranteed by 30 photos" in said
    assert int(session().snapshot.threshold.at) == 13
    with pytest.raises(SettingError, match="expected --recall as"):
        detect("photos", *STATE, "--recall", "0.5")


def test_photos_that_look_unlike_their_class_are_named_and_left_out(known: Path) -> None:
    detect("photos", *NAMES, *STATE)
    save_shade(known / "red" / "odd.png", (0, 9, 255))
    said = " ".join(run("calibrate", "known", *STATE).stderr.split())
    assert "known/red/odd.png looks unlike its class: left out of the threshold; calibrate --keep-odd keeps it" in said
    left_out = session()
    assert len(left_out.told.z) == 30
    detect("photos", *NAMES, "--state", "kept.safetensors")
    assert "odd.png" not in run("calibrate", "known", "--state", "kept.safetensors", "--keep-odd").stderr
    kept = Session.load("kept.safetensors")
    assert len(kept.told.z) == 31
    assert kept.threshold < left_out.threshold


def test_a_folder_that_is_no_known_name_is_left_out_or_refused(known: Path) -> None:
    detect("photos", *NAMES, *STATE)
    for i in range(3):
        save_shade(known / "sea" / f"{i}.png", (0, 2 * i, 255))
    assert "sea: no known name, 3 of 33 photos are left out" in " ".join(
        run("calibrate", "known", *STATE).stderr.split()
    )
    run("retire", "green", *STATE, "--json")
    assert len(session().told.z) == 15  # the photos of the name went with it
    said = " ".join(run("calibrate", "known", *STATE).stderr.split())
    assert "green, sea: no known name, 18 of 33 photos are left out" in said
    with pytest.raises(DataError, match="expected photos of known names in known/green, got those of green alone"):
        run("calibrate", "known/green", *STATE)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
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


def test_photos_that_cannot_be_read_and_a_missing_state_are_refused() -> None:
    for path in Path("known").rglob("*.png"):
        path.write_bytes(b"x")
    with pytest.raises(DataError, match="expected photos that can be read in known, got 30 that are not"):
        detect("photos", *NAMES, "--calibrate", "known")
    with pytest.raises(StateError, match="expected a state to calibrate, got no file"):
        run("calibrate", "known", *STATE)
