"""unseen detect as a user calls it, with an encoder that knows colours only."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.commands import detect, rows, run
from helpers.pictures import flat, save_shade
from helpers.tiny_models import NamedColours
from unseen import LabelSpace, Session, checkpoint, demo, detectors
from unseen.cli import output
from unseen.cli.run import SAVING_SHARE, LearnedFiles, Run
from unseen.errors import EncoderError, LabelError, SettingError, StateError
from unseen.images import Image
from unseen.threshold import Fixed
from unseen.verdicts import FIELDS, VERDICTS

pytestmark = pytest.mark.usefixtures("encoder", "photos")

NAMES = ("--label", "red", "--label", "green")
STATE = ("--state", "s.safetensors")
BROKEN = b"not a picture"


def session(state: str = "s") -> Session:
    return Session.load(f"{state}.safetensors")


def seen(state: str = "s") -> int:
    return int(session(state).snapshot.tally.seen)


def margins(result: Any) -> dict[str, float]:
    return {Path(row["key"]).name: row["margin"] for row in rows(result) if "margin" in row}


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("s.*safetensors")}


def stop_after(encoder: NamedColours, calls: int, stop: Any) -> None:
    """Let the encoder stop the command once it has encoded so many photos from now on."""
    images, encoder.calls = encoder.images, 0

    def stopping(batch: list[object]) -> torch.Tensor:
        if encoder.calls >= calls:
            encoder.images = images  # type: ignore[method-assign]
            stop()
        return images(batch)

    encoder.images = stopping  # type: ignore[method-assign]


def test_every_photo_gets_one_line_in_order(photos: Path) -> None:
    result = detect("photos", *NAMES, batch=5)
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(Path("photos") / path.name) for path in sorted(photos.iterdir())]
    assert re.fullmatch(r"photos/00-red.png +known +red +\d+ %", lines[0])
    assert any(re.search(r" unknown +near (red|green) +\d+ %   or: \w+$", line) for line in lines)
    assert "2 names + " in result.stderr
    summary = result.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"known 8 · doubtful 0 · unknown 4 · threshold -?[\d.]+ \(keeps likely .* of known, 95 % wanted.*\)", summary
    )
    assert detect("photos", *NAMES, *STATE).stderr.endswith(" · state saved\n")


def test_json_csv_and_files_carry_the_same_verdicts_and_name_what_was_skipped(photos: Path) -> None:
    (photos / "99.png").write_bytes(BROKEN)
    *objects, last = rows(detect("photos", *NAMES, "--json", code=1))
    detect("photos", *NAMES, "-o", "out.csv", code=1)
    table = list(csv.DictReader(io.StringIO(Path("out.csv").read_text())))
    assert list(table[0]) == list(objects[0]) == list(FIELDS)
    assert [row["key"] for row in table] == [row["key"] for row in objects]
    assert [row["name"] or None for row in table] == [row.get("name") for row in objects]
    assert (table[-1]["verdict"], objects[-1]["skipped"]) == ("skipped", "not an image of a supported format")
    assert (last["summary"]["skipped"], last["state"]) == (1, None)
    text = detect("photos", *NAMES, code=1)
    assert "99.png skipped not an image of a supported format" in " ".join(text.stdout.split())
    assert "skipped 1" in text.stderr
    (summary,) = rows(detect("photos", *NAMES, "--json", "-o", "out.jsonl", code=1))
    assert summary["summary"] == last["summary"]
    lines = Path("out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == objects


def test_a_second_run_needs_no_names_and_two_runs_learn_what_one_long_run_learns(tmp_path: Path, photos: Path) -> None:
    whole = margins(detect("photos", *NAMES, "--json"))
    for folder, keep in (("first", range(7)), ("second", range(7, 12))):
        (tmp_path / folder).mkdir()
        for path in [sorted(photos.iterdir())[i] for i in keep]:
            os.link(path, tmp_path / folder / path.name)
    parts = margins(detect("first", *NAMES, *STATE, "--json", batch=3))
    second = detect("second", *STATE, "--json")
    assert list(parts | margins(second)) == list(whole)
    assert margins(second) == pytest.approx({name: whole[name] for name in margins(second)})
    assert margins(detect("first", *STATE, "--json")) == pytest.approx({name: whole[name] for name in parts})
    summary = rows(second)[-1]["summary"]
    assert (summary["seen"], summary["learned_from"]) == (12, 5)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_stop_keeps_what_was_printed_and_the_same_command_ends_as_one_run(encoder: NamedColours, kind: int) -> None:
    whole = margins(detect("photos", *NAMES, "--json", "--state", "whole.safetensors", batch=4))
    stop_after(encoder, 4, partial(signal.raise_signal, kind))
    stopped = detect("photos", *NAMES, *STATE, "--report", "r.html", batch=4, code=1)
    assert len(stopped.stdout.splitlines()) == seen() == 4
    assert "stopped: what is printed is kept" in stopped.stderr
    assert Path("r.html").is_file()
    resumed = margins(detect("photos", *NAMES, *STATE, "--json", batch=5))  # a batch of both kinds
    assert resumed == pytest.approx(whole)
    assert list(resumed) == list(whole)
    assert seen() == 12


def test_the_same_command_learns_nothing_twice_and_judges_everything(photos: Path) -> None:
    detect("photos", *NAMES, *STATE)
    before = checkpoint.load("s.safetensors").states
    *verdicts, last = rows(detect(photos, *NAMES, *STATE, "--json"))  # by another spelling of the same path
    assert len(verdicts) == 12
    assert last["summary"] | {"seen": 12, "learned_from": 0, "learned_before": 12} == last["summary"]
    after = checkpoint.load("s.safetensors").states
    assert {name: parts.keys() for name, parts in before.items()} == {name: one.keys() for name, one in after.items()}
    assert all(torch.equal(part, after[name][key]) for name, parts in before.items() for key, part in parts.items())
    save_shade(photos / "00-red.png", (9, 9, 9))  # another photo by the same name is new
    assert rows(detect("photos", *STATE, "--json"))[-1]["summary"]["learned_before"] == 11


def test_no_learn_leaves_every_file_as_it_is(tmp_path: Path, photos: Path) -> None:
    detect("photos", *NAMES, *STATE, "--no-learn")
    assert not kept(tmp_path)
    detect("photos", *NAMES, *STATE)
    before = kept(tmp_path)
    save_shade(photos / "00-red.png", (9, 9, 9))
    detect("photos", *STATE, "--no-learn")
    assert kept(tmp_path) == before


def test_after_a_kill_what_came_after_the_last_write_is_learned_again(tmp_path: Path, encoder: NamedColours) -> None:
    left: dict[str, bytes] = {}
    stop_after(encoder, 1, lambda: left.update(kept(tmp_path)))  # what a kill would leave
    whole = margins(detect("photos", *NAMES, *STATE, "--json", batch=1))
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    before = seen()
    assert 0 < before < 12
    result = detect("photos", *NAMES, *STATE, "--json", batch=1)
    assert rows(result)[-1]["summary"]["learned_before"] == before
    assert margins(result) == pytest.approx(whole)


def test_what_a_killed_command_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    detect("photos", *NAMES, *STATE)
    old = [".s.safetensors.abcd1234.partial", ".s.learned.safetensors.abcd1234.partial"]
    others = [".s2.safetensors.abcd1234.partial", ".s.settings", ".s.space.safetensors.in_work_.partial"]
    for name in old + others:
        (tmp_path / name).touch()
        if "in_work" not in name:
            os.utime(tmp_path / name, (0, 0))
    detect("photos", *STATE)
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(others)


def test_a_record_that_is_ahead_of_its_state_is_cut_and_long_ones_are_bounded(tmp_path: Path) -> None:
    pictures = [Image(f"{i}.png", flat((i, 0, 0), (2, 2))) for i in range(5)]
    record = LearnedFiles.of_state(tmp_path / "s", 0)
    record.most = 3
    assert record.claim([*pictures[:4], pictures[0]], 0).tolist() == [True] * 4 + [False]
    record.save()
    assert list(LearnedFiles.of_state(tmp_path / "s", 4).places.values()) == [1, 2, 3]
    crashed = LearnedFiles.of_state(tmp_path / "s", 2)  # the state was not written after the second image
    assert crashed.claim(pictures, 2).tolist() == [True, False, True, True, True]


def test_saving_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = [0.0], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Saved(Run):
        def save(self) -> None:
            now[0] += 0.3
            spent[0] += 0.3

    stream = Saved(Session(demo.load().space), output.Lines(print, print))
    while now[0] < 300:
        now[0] += 0.05
        stream.save_when_due()
    assert 0.01 < spent[0] / now[0] <= SAVING_SHARE


def test_vectors_lie_beside_the_state_so_that_a_repeat_encodes_nothing(
    photos: Path, encoder: NamedColours, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = margins(detect("photos", *NAMES, *STATE, "--json"))
    assert (encoder.calls, Path("s.features").is_dir()) == (12, True)
    assert margins(detect("photos", *STATE, "--json")) == pytest.approx(first)
    assert encoder.calls == 12
    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: pytest.fail("a model was loaded"))
    (row,) = rows(run("explain", photos.relative_to(Path.cwd()) / "02-blue.png", *STATE, "--json"))
    assert row["margin"] == pytest.approx(first["02-blue.png"], rel=1e-4)


def test_vectors_are_not_kept_without_a_state_or_where_nothing_is_learned(encoder: NamedColours) -> None:
    detect("photos", *NAMES)
    detect("photos", *NAMES, "--state", "t.safetensors", "--no-learn")
    assert not list(Path().glob("*.features"))
    detect("photos", *NAMES, "--state", "u.safetensors")
    for name in ("u.safetensors", "u.space.safetensors", "u.learned.safetensors"):
        Path(name).unlink()
    encoder.fingerprint = "0ther" * 8
    assert "nothing is kept" in detect("photos", *NAMES, "--state", "u.safetensors").stderr


def test_a_word_of_ones_own_is_a_negative_and_must_be_one_from_the_start(photos: Path) -> None:
    detect("photos", *NAMES, "--never", "blue", "--state", "s")
    space = LabelSpace.load("s.space.safetensors")
    assert (space.negatives[0], space.origins[0].kind) == ("blue", "never")
    detect("photos", *NAMES, "--never", "blue", "--state", "s")
    with pytest.raises(LabelError, match="saved without 'pink'"):
        detect("photos", "--never", "pink", "--state", "s")


def test_a_class_of_ones_own_is_a_detector_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own.py").write_text("from unseen.detectors import MCM\n\nclass Halved(MCM):\n    name = 'halved'\n")
    monkeypatch.setattr(detectors, "_own", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "detector halved" in detect("photos", *NAMES, *STATE, "--detector", "own:Halved").stderr
    detect("photos", *STATE, "--detector", "own:Halved")
    del detectors._own["halved"]
    with pytest.raises(SettingError, match=r"got 'halved'; check the spelling, or register .*--detector module:Class"):
        detect("photos", *STATE)
    for name, message in (("own:Absent", "no attribute 'Absent'"), ("absent:Own", "No module"), ("sys:path", "subcl")):
        with pytest.raises(SettingError, match=message):
            detect("photos", *NAMES, "--detector", name)


def test_names_come_from_files_of_windows_too_and_odd_ones_get_a_warning(encoder: NamedColours) -> None:
    Path("classes.txt").write_bytes("red\r\ngreen\r\n".encode("utf-16"))
    said = detect("photos", "--labels", "classes.txt").stderr
    assert "2 names" in said
    assert "say nearly the same" not in said
    said = detect("photos", *NAMES, "--label", "dark red").stderr
    assert "1 pair of your names say nearly the same" in said
    assert "red ~ dark red (1.00); keep one of each" in said
    said = detect("photos", "--label", "red,dark green", "--label", "blue").stderr
    assert "'red,dark green' is taken for one name; for 2 names write: --label red --label 'dark green'" in said
    assert "'blue' is taken" not in said
    assert "English" not in detect("photos", "--label", "red", "--label", "grün").stderr
    encoder.name = "offline-b16"
    said = detect("photos", "--label", "red", "--label", "grün").stderr
    assert "knows English only, got grün; use English names" in said


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ((*NAMES, "--label", "red"), LabelError, "more than once"),
        ((*NAMES, "--label", " "), LabelError, "1 empty"),
        (("--label", "red\ngreen"), LabelError, r"got 'red\\ngreen'; give each by itself, or a file of them"),
        ((), LabelError, "--label NAME"),
        (("--state", "absent.safetensors"), LabelError, "for the first run"),
        (("--label", "red", "--detector", "mcm"), LabelError, "expected at least 2 known names for 'mcm', got 1"),
        ((*NAMES, "--recall", "2"), SettingError, "expected a recall between 0 and 1"),
        ((*NAMES, "--only", "sure"), SettingError, "expected a verdict out of"),
        ((*NAMES, "--detector", "gl-mcm"), SettingError, "reads whole images"),
        ((*NAMES, "--detector", "nobody"), SettingError, "expected a detector out of"),
        ((*NAMES, "--report", "absent/r.html"), SettingError, "expected a folder for absent/r.html, got none"),
        ((*NAMES, "--state", "absent/s"), SettingError, "expected a folder for absent/s, got none"),
        ((*NAMES, "--report", "photos"), SettingError, "expected a file to write, got the folder photos"),
        ((*NAMES, "-o", "out.xls"), SettingError, "expected -o with a file .jsonl, .csv or .txt, got out.xls"),
        ((*NAMES, "--state", "names.txt"), StateError, "expected a state file at names.txt, got something unseen"),
        (("--state", "empty"), StateError, "expected a state file at empty, got an empty file"),
    ],
)
def test_misuse_is_refused_with_a_remedy_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr("unseen.encoders.load_encoder", lambda name, **options: pytest.fail("a model was loaded"))
    Path("names.txt").write_text("red\ngreen\n")
    Path("empty").touch()
    with pytest.raises(error, match=message):
        detect("photos", *words)


def test_a_state_refuses_options_it_was_not_learned_with(encoder: NamedColours) -> None:
    detect("photos", *NAMES, *STATE)
    for options, error, message in (
        (("--label", "blue"), LabelError, "expected the names of the label space"),
        (("--detector", "mcm"), SettingError, "--detector"),
        (("--recall", "0.5"), SettingError, "expected --recall as"),
    ):
        with pytest.raises(error, match=message):
            detect("photos", *options, *STATE)
    detect("photos", "--recall", "0.95", *STATE)  # what it was learned with
    encoder.fingerprint = "0ther" * 8
    with pytest.raises(EncoderError, match="pass --encoder colour"):
        detect("photos", *STATE)
    with pytest.raises(EncoderError, match="expected the encoder of this label space"):
        run("calibrate", "photos", *STATE)
    encoder.fingerprint = NamedColours().fingerprint
    detect("photos", "--label", "red", "--label", "blue", "--state", "t.safetensors")
    with pytest.raises(StateError, match="label space"):
        detect("photos", "--space", "t.space.safetensors", *STATE)
    Path("s.space.safetensors").unlink()
    with pytest.raises(StateError, match=r"expected the label space of s\.safetensors at s\.space"):
        detect("photos", *STATE)


def test_a_folder_is_judged_at_its_end_by_everything_learned(photos: Path) -> None:
    (photos / "05-broken.png").write_bytes(BROKEN)
    *found, last = rows(detect("photos", *NAMES, *STATE, "--json", "--report", "r.html", code=1))
    judged = [row for row in found if "margin" in row]
    assert [row["threshold"] for row in judged] == pytest.approx([last["summary"]["threshold"]] * 12)
    counts = Counter(row["verdict"] for row in judged)
    assert {word: last["summary"][word] for word in VERDICTS} == {word: counts[word] for word in VERDICTS}
    assert Path("r.html").read_text().count("data:image/jpeg") == 12
    assert session().threshold == last["summary"]["threshold"]
    assert [row["key"] for row in found] == sorted(row["key"] for row in found)


def test_an_alarm_is_raised_once_and_told() -> None:
    detect("photos", *NAMES, *STATE)
    options = ["--alarm", "0.01", "--json", "--state", "fixed.safetensors"]
    space = session().detector.labels
    Session(space, Fixed(1e6)).save("fixed.safetensors")
    result = detect("photos", *options)
    assert result.stderr.count("alarm at image") == 1
    assert "more than 1 % of the images are unknown" in result.stderr
    assert rows(result)[-1]["summary"]["alarm"]["unknown_rate_raised"]
    Session(space, Fixed(-1e6)).save("fixed.safetensors")
    calm = rows(detect("photos", *options))[-1]["summary"]["alarm"]
    assert not calm["unknown_rate_raised"]
