"""unseen detect as a user calls it, with an encoder that knows colours only."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest
import torch
from PIL import Image as Pillow
from typer.testing import CliRunner, Result

from helpers.detect_command import rows, run
from helpers.tiny_models import COLOURS, NamedColours
from unseen import LabelSpace, Session
from unseen.cli import app
from unseen.cli import detect as command
from unseen.errors import DataError, EncoderError, LabelError, SettingError, StateError
from unseen.images import find_images
from unseen.images.sources import capture_time, sort_entries
from unseen.labels import wordnet
from unseen.verdicts import FIELDS

pytestmark = pytest.mark.usefixtures("encoder")


def test_every_photo_gets_one_line_in_order(photos: Path) -> None:
    result = run("photos", "--label", "red", "--label", "green", "--batch", "5")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(Path("photos") / path.name) for path in sorted(photos.iterdir())]
    assert re.search(r" known +\d+ % likely +red +[\d.]+ ≥ ", lines[0])
    assert any(re.search(r" unknown +\d+ % likely +near (red|green) ", line) for line in lines)
    assert "2 names + 40 negatives (words, miner wordnet" in result.stderr
    assert "known " in result.stderr
    assert "learned from 12" in result.stderr


def test_a_broken_photo_is_reported_and_exits_one(photos: Path) -> None:
    (photos / "03-broken.png").write_bytes(b"not a picture")
    result = run("photos", "--label", "red", "--label", "green", code=1)
    assert "03-broken.png" in result.stdout
    assert "skipped: not an image of a supported format" in result.stdout
    assert "skipped 1" in result.stderr


def test_a_folder_of_broken_photos_is_reported_and_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"")
    result = run(
        "bad", "--label", "red", "--label", "green", "--report", "out.html", "--state", "s.safetensors", code=1
    )
    assert "skipped: empty file" in result.stdout
    assert "known 0 · unknown 0 · skipped 1" in result.stderr
    assert "No image could be read" in (tmp_path / "out.html").read_text()


def test_json_and_csv_carry_the_same_verdicts(photos: Path) -> None:
    (photos / "99.png").write_bytes(b"x")
    names = ("--label", "red", "--label", "green")
    objects = rows(run("photos", *names, "--json", code=1))
    table = list(csv.DictReader(io.StringIO(run("photos", *names, "--csv", code=1).stdout)))
    assert list(table[0]) == list(objects[0]) == list(FIELDS)
    assert [row["key"] for row in table] == [row["key"] for row in objects[:-1]]
    assert [row["name"] or None for row in table] == [row.get("name") for row in objects[:-1]]
    assert table[-1]["verdict"] == "skipped"
    assert objects[-1]["summary"]["skipped"] == 1
    assert objects[-1]["state"] is None


def test_a_second_run_needs_no_names_and_two_runs_equal_one_long_run(tmp_path: Path, photos: Path) -> None:
    names = ("--label", "red", "--label", "green", "--json")
    whole = rows(run("photos", *names))
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, keep in ((first, range(7)), (second, range(7, 12))):
        folder.mkdir()
        for path in [sorted(photos.iterdir())[i] for i in keep]:
            os.link(path, folder / path.name)
    parts = rows(run("first", *names, "--state", "day.safetensors", "--batch", "3"))
    parts += rows(run("second", "--state", "day.safetensors", "--json"))
    found = [(Path(row["key"]).name, row["name"], row["margin"]) for row in parts if "key" in row]
    expected = [(Path(row["key"]).name, row["name"], pytest.approx(row["margin"])) for row in whole if "key" in row]
    assert found == expected
    assert parts[-1]["summary"]["seen"] == 12
    assert parts[-1]["summary"]["learned_from"] == 5
    assert (tmp_path / "day.space.safetensors").is_file()


def test_ctrl_c_keeps_what_was_printed(tmp_path: Path, photos: Path, encoder: NamedColours) -> None:
    images = encoder.images

    def interrupted(batch: list[object]) -> torch.Tensor:
        if encoder.calls >= 8:
            raise KeyboardInterrupt
        return images(batch)

    encoder.images = interrupted  # type: ignore[method-assign]
    options = ("--label", "red", "--label", "green", "--state", "s.safetensors", "--batch", "4", "--report", "r.html")
    result = run("photos", *options, code=1)
    assert len(result.stdout.splitlines()) == 8
    assert "stopped: what is printed is kept" in result.stderr
    assert (tmp_path / "r.html").is_file()
    session = Session.load(tmp_path / "s.safetensors", LabelSpace.load(tmp_path / "s.space.safetensors"))
    assert int(session.snapshot.tally.seen) == 8


def test_features_are_encoded_once(tmp_path: Path, photos: Path, encoder: NamedColours) -> None:
    options = ("photos", "--label", "red", "--label", "green", "--features", "kept", "--json")
    before = rows(run(*options))
    assert encoder.calls == 12
    Pillow.new("RGB", (9, 9), (255, 9, 9)).save(photos / "00-red.png")
    after = rows(run(*options))
    assert encoder.calls == 13
    assert [row["margin"] for row in before[1:-1]] != []
    assert [row["name"] for row in after[1:-1]] == [row["name"] for row in before[1:-1]]


def test_a_mined_space_can_be_given(tmp_path: Path, photos: Path) -> None:
    eye = torch.eye(3)
    LabelSpace(("red", "green"), ("blue",), eye[:2], eye[2:], encoder="colour").save(tmp_path / "space.safetensors")
    result = rows(run("photos", "--space", "space.safetensors", "--json", "--threshold", "0"))
    assert [row["name"] for row in result[:3]] == ["red", "green", None]


def test_label_files_of_windows_are_read_and_duplicates_refused(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "classes.txt").write_bytes("red\r\ngreen\r\n".encode("utf-16"))
    assert "2 names" in run("photos", "--labels", "classes.txt").stderr
    with pytest.raises(LabelError, match="more than once"):
        run("photos", "--labels", "classes.txt", "--label", "red")


def test_names_are_checked_before_a_model_is_loaded(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_encoder", lambda name, **options: pytest.fail("loaded"))
    for others, words in ((("red",), "more than once"), ((" ",), "1 empty")):
        with pytest.raises(LabelError, match=words):
            run("photos", "--label", "red", *(part for name in others for part in ("--label", name)))


def test_counts_and_files_are_checked_before_a_model_is_loaded(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_encoder", lambda name, **options: pytest.fail("a model was loaded"))
    with pytest.raises(LabelError, match="expected a label space with negatives for 'pooled', got none"):
        run("photos", "--label", "red", "--negatives", "0")
    with pytest.raises(LabelError, match="expected at least 2 known names for 'mcm', got 1"):
        run("photos", "--label", "red", "--detector", "mcm")
    (tmp_path / "names.txt").write_text("red\ngreen\n")
    (tmp_path / "empty").touch()
    LabelSpace(("red",), (), torch.eye(2)[:1], torch.empty(0, 2)).save(tmp_path / "space.safetensors")
    for name, found in (("names.txt", "something unseen"), ("empty", "an empty file"), ("space.safetensors", "label-")):
        for options in (("--label", "red"), (), ("--space", "space.safetensors")):
            with pytest.raises(StateError, match=f"expected a state file at {name}, got {found}"):
                run("photos", *options, "--state", name)


def test_a_list_given_as_one_name_is_refused(photos: Path) -> None:
    with pytest.raises(LabelError, match=r"got 'red\\ngreen'; give each by itself, or a file of them"):
        run("photos", "--label", "red\ngreen")


def test_names_with_commas_given_as_one_get_a_warning_with_the_command(photos: Path) -> None:
    options = ["detect", str(photos), "--label", "red,dark green", "--label", "blue", "--negatives", "5"]
    said = CliRunner().invoke(app, options).stderr
    assert "'red,dark green' is taken for one name; for 2 names write: --label red --label 'dark green'" in said
    assert "'blue' is taken" not in said


def test_names_that_say_the_same_get_a_warning(photos: Path) -> None:
    assert "say nearly the same" not in run("photos", "--label", "red", "--label", "green").stderr
    words = run("photos", "--label", "red", "--label", "green", "--label", "dark red").stderr
    assert "1 pair of your names say nearly the same" in words
    assert "red ~ dark red (1.00); keep one of each" in words


def test_misuse_is_refused_with_a_remedy(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("--label", "red", "--label", "green")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="at least one image"):
        run("empty", *names)
    with pytest.raises(LabelError, match="--label NAME"):
        run("photos")
    with pytest.raises(LabelError, match="for the first run"):
        run("photos", "--state", "absent.safetensors")
    for options, words in (
        (("--json", "--csv"), "--json or --csv"),
        (("--recall", "0.9", "--threshold", "0"), "--recall or --threshold"),
        (("--order", "size"), "expected an order out of"),
        (("--detector", "gl-mcm"), "reads whole images"),
        (("--detector", "nobody"), "expected a detector out of"),
    ):
        with pytest.raises(SettingError, match=words):
            run("photos", *names, *options)


def test_a_state_refuses_options_it_was_not_learned_with(
    tmp_path: Path, photos: Path, encoder: NamedColours, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ("--state", "s.safetensors")
    run("photos", "--label", "red", "--label", "green", *state)
    with pytest.raises(LabelError, match="expected the names of the label space"):
        run("photos", "--label", "blue", *state)
    with pytest.raises(SettingError, match="--detector"):
        run("photos", "--detector", "mcm", *state)
    with pytest.raises(SettingError, match="--recall and --threshold"):
        run("photos", "--recall", "0.5", *state)
    run("photos", "--recall", "0.95", *state)  # what it was learned with
    monkeypatch.setattr(encoder, "fingerprint", "0ther" * 8)
    with pytest.raises(EncoderError, match="pass --encoder colour"):
        run("photos", *state)
    monkeypatch.undo()


def test_a_state_without_its_space_or_with_another_is_refused(tmp_path: Path, photos: Path) -> None:
    run("photos", "--label", "red", "--label", "green", "--state", "s.safetensors")
    run("photos", "--label", "red", "--label", "blue", "--state", "t.safetensors")
    with pytest.raises(StateError, match="label space"):
        run("photos", "--space", "t.space.safetensors", "--state", "s.safetensors")
    (tmp_path / "s.space.safetensors").unlink()
    with pytest.raises(StateError, match="--space"):
        run("photos", "--state", "s.safetensors")


def test_orders_are_by_name_by_time_and_shuffled_the_same_way(photos: Path) -> None:
    paths = sorted(photos.iterdir())
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (age, age))
    camera = Pillow.new("RGB", (4, 4))
    details = camera.getexif()
    details.get_ifd(0x8769)[0x9003] = "1975:06:01 12:00:00"
    camera.save(photos / "camera.jpg", exif=details)
    found = list(find_images(photos))
    assert sort_entries(found, "name") is found
    by_time = [Path(entry.path).name for entry in sort_entries(found, "time")]
    assert by_time == [*(path.name for path in reversed(paths)), "camera.jpg"]
    assert capture_time(photos / "camera.jpg") < 2e8 < (photos / "camera.jpg").stat().st_mtime
    shuffled = [entry.path for entry in sort_entries(found, "shuffled")]
    assert shuffled == [entry.path for entry in sort_entries(found, "shuffled")]
    assert sorted(shuffled) == [entry.path for entry in found] != shuffled


def test_frames_of_a_video_keep_their_order() -> None:
    with pytest.raises(SettingError, match="frames come in their own order"):
        sort_entries(iter([]), "time")


def test_a_thinned_corpus_is_spread_over_every_list() -> None:
    whole = wordnet()
    small = whole.thinned(2000)
    assert small.lists == whole.thinned(2000).lists
    assert small.lists.keys() == whole.lists.keys()
    assert abs(sum(map(len, small.lists.values())) - 2000) < len(whole.lists)
    assert set(small.lists["noun.act"]) < set(whole.lists["noun.act"])
    assert small.fingerprint != whole.fingerprint
    assert whole.thinned(0) is whole.thinned(10**9) is whole


NAMES = ("--label", "red", "--label", "green")


@pytest.fixture
def known(tmp_path: Path) -> Path:
    """A folder per class with 15 photos of each known colour."""
    for i in range(30):
        name = ("red", "green")[i % 2]
        shade = tuple(min(255, c + 2 * i) for c in COLOURS[name])
        (tmp_path / "known" / name).mkdir(parents=True, exist_ok=True)
        Pillow.new("RGB", (20, 16), shade).save(tmp_path / "known" / name / f"{i:02d}.png")
    return tmp_path / "known"


def calibrated(*options: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["calibrate", *options], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_a_state_is_calibrated_with_photos(photos: Path, known: Path) -> None:
    run("photos", *NAMES, "--state", "s.safetensors")
    result = calibrated("known", "--state", "s.safetensors")
    words = " ".join(result.stderr.split())
    assert "calibrated with 30 known images at image 12 of the stream" in words
    assert "a new known image is kept with probability at least 95 %" in words
    assert "20 images: 86.1 to 99.7 %" in words
    assert "warning" not in words
    session = Session.load("s.safetensors", LabelSpace.load("s.space.safetensors"))
    assert int(session.snapshot.tally.seen) == 12
    assert (
        "calibrated with 30 known images, 12 images ago" in run("photos", "--again", "--state", "s.safetensors").stderr
    )


def test_calibration_is_printed_as_json(photos: Path, known: Path) -> None:
    run("photos", *NAMES, "--state", "s.safetensors")
    (known / "red" / "broken.png").write_bytes(b"x")
    (row,) = rows(calibrated("known", "--state", "s.safetensors", "--recall", "0.9", "--json", code=1))
    assert row["calibration"].keys() == {"images", "recall", "conformal", "threshold", "low", "high", "at"}
    assert row["calibration"]["threshold"] <= row["calibration"]["conformal"]
    assert (row["calibration"]["images"], row["calibration"]["at"], row["skipped"]) == (30, 12, 1)


def test_broken_calibration_photos_are_skipped_inputs_of_detect(photos: Path, known: Path) -> None:
    (known / "red" / "broken.png").write_bytes(b"x")
    result = run("photos", *NAMES, "--calibrate", "known", code=1)
    assert "skipped 1" in result.stderr


def test_too_few_calibration_photos_say_which_were_broken(photos: Path, known: Path) -> None:
    for path in (known / "red").iterdir():
        path.write_bytes(b"x")
    result = CliRunner().invoke(app, ["detect", "photos", *NAMES, "--calibrate", "known"])
    assert "expected at least 19 known images for a recall of 0.95, got 15" in str(result.exception)
    assert result.stderr.count("skipped: ") == 15


def test_detect_calibrates_as_the_stream_grows(photos: Path, known: Path) -> None:
    result = run("photos", *NAMES, "--calibrate", "known", "--state", "s.safetensors", "--batch", "4")
    assert "calibrated with 30 known images at image 0 of the stream" in result.stderr
    assert "~" not in result.stdout
    session = Session.load("s.safetensors", LabelSpace.load("s.space.safetensors"))
    assert int(session.snapshot.threshold.at) == 12
    assert run("photos", "--state", "s.safetensors", "--recall", "0.95", "--json")
    assert run("photos", "--state", "s.safetensors", "--recall", "0.9", "--calibrate", "known")
    with pytest.raises(SettingError, match="--recall and --threshold"):
        run("photos", "--state", "s.safetensors", "--recall", "0.5")


def test_bad_calibration_is_refused_before_anything_is_encoded(
    tmp_path: Path, photos: Path, known: Path, encoder: NamedColours
) -> None:
    (tmp_path / "empty").mkdir()
    for options, error, words in (
        (("photos",), SettingError, "at least 19 known images for a recall of 0.95, got 12"),
        (("known", "--recall", "0.99"), SettingError, "at least 99 known images"),
        (("known", "--recall", "0"), SettingError, "expected a recall between 0 and 1"),
        (("known", "--recall", "1"), SettingError, "expected a recall between 0 and 1"),
        (("known", "--recall", "95"), SettingError, "write 0.95 for 95 %"),
        (("empty",), DataError, "at least one image, got none in empty"),
        (("nowhere",), DataError, "got nothing at nowhere"),
        (("known",), StateError, "expected a state to calibrate, got no file"),
    ):
        with pytest.raises(error, match=words):
            calibrated(*options, "--state", "s.safetensors")
        if error is not StateError:
            with pytest.raises(error, match=words):
                run("photos", *NAMES, "--calibrate", *options)
    with pytest.raises(SettingError, match="--calibrate or --threshold"):
        run("photos", *NAMES, "--calibrate", "known", "--threshold", "1")
    assert encoder.calls == 0


def test_photos_that_look_unknown_are_named(photos: Path, known: Path) -> None:
    run("photos", *NAMES, "--state", "s.safetensors", "--threshold", "0")
    (known / "sea").mkdir()
    for i in range(10):
        Pillow.new("RGB", (20, 16), (0, 2 * i, 255)).save(known / "sea" / f"{i}.png")
    words = " ".join(calibrated("known", "--state", "s.safetensors").stderr.split())
    assert "10 of 40 calibration images look unknown" in words
    assert re.search(r"the lowest are known/sea/\d.png", words)
    assert "these folders carry none of the known names: sea" in words


def test_another_encoder_is_refused(photos: Path, known: Path, encoder: NamedColours) -> None:
    run("photos", *NAMES, "--state", "s.safetensors")
    encoder.fingerprint = "other"
    with pytest.raises(EncoderError, match="expected the encoder of this label space"):
        calibrated("known", "--state", "s.safetensors")


def test_rejudged_verdicts_have_the_final_threshold(photos: Path) -> None:
    (photos / "05-broken.png").write_bytes(b"x")
    options = ("photos", *NAMES, "--json", "--batch", "4", "--report", "r.html")
    first, final = rows(run(*options, code=1)), rows(run(*options, "--rejudge", code=1))
    assert [row["key"] for row in final[:-1]] == [row["key"] for row in first[:-1]]
    judged = [row for row in final[:-1] if "margin" in row]
    assert [row["margin"] for row in judged] == [row["margin"] for row in first[:-1] if "margin" in row]
    assert [row["threshold"] for row in judged] == pytest.approx([final[-1]["summary"]["threshold"]] * 12)
    assert final[-1]["summary"]["known"] == sum(row["verdict"] == "known" for row in judged)


def test_names_that_are_not_english_get_a_warning_with_the_offline_tower(photos: Path, encoder: NamedColours) -> None:
    assert "English" not in run("photos", "--label", "red", "--label", "grün").stderr
    encoder.name = "offline-b16"
    assert (
        "knows English only, got grün; use English names" in run("photos", "--label", "red", "--label", "grün").stderr
    )


def test_an_alarm_is_raised_once_and_told(encoder: NamedColours, photos: Path) -> None:
    options = [str(photos), "--label", "red", "--threshold", "1e6", "--alarm", "0.01", "--batch", "4", "--json"]
    result = run(*options)
    assert result.stderr.count("alarm at image") == 1
    assert "more than 1 % of the images are unknown" in result.stderr
    assert rows(result)[-1]["summary"]["alarm"]["unknown_rate_raised"]
    calm = rows(run(*options[:3], "--threshold=-1e6", *options[5:]))[-1]["summary"]["alarm"]
    assert (calm["unknown_rate_raised"], calm["mix_raised"]) == (False, False)
