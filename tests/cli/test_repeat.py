"""unseen detect with the same state again, with a detector of one's own, with output that cannot be written."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

from helpers.detect_command import rows, run
from helpers.tiny_models import NamedColours
from unseen import LabelSpace, Session, checkpoint, demo, detectors
from unseen.cli import learned_files, stream_run
from unseen.cli.learned_files import LearnedFiles
from unseen.cli.output import choose
from unseen.cli.stream_run import StreamRun
from unseen.errors import SettingError
from unseen.images import Image

pytestmark = pytest.mark.usefixtures("encoder")

NAMES = ("--label", "red", "--label", "green", "--json")
STATE = ("--state", "s.safetensors")
OWN = """
from unseen.detectors import MCM

class Halved(MCM):
    name = "halved"
"""


def loaded(folder: Path, name: str = "s") -> Session:
    space = LabelSpace.load(folder / f"{name}.space.safetensors")
    return Session.load(folder / f"{name}.safetensors", space)


def states(path: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.load(path).states
    return {f"{state}.{name}": part for state, parts in found.items() for name, part in parts.items()}


def margins(result: Any) -> dict[str, float]:
    return {row["key"]: row["margin"] for row in rows(result) if "margin" in row}


def test_the_same_command_learns_nothing_twice_and_judges_everything(tmp_path: Path, photos: Path) -> None:
    run("photos", *NAMES, *STATE)
    before = states(tmp_path / "s.safetensors")
    *verdicts, last = rows(run(str(photos), *NAMES, *STATE))  # by another spelling of the same path
    assert len(verdicts) == 12
    assert last["summary"] | {"seen": 12, "learned_from": 0, "learned_before": 12} == last["summary"]
    after = states(tmp_path / "s.safetensors")
    assert all(torch.equal(part, after[name]) for name, part in before.items())
    assert before.keys() == after.keys()


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [interrupt, partial(signal.raise_signal, signal.SIGTERM)], ids=["ctrl-c", "sigterm"])
def test_after_a_stop_the_same_command_ends_as_a_run_that_was_never_stopped(
    tmp_path: Path, photos: Path, encoder: NamedColours, stop: Callable[[], None]
) -> None:
    whole = margins(run("photos", *NAMES, "--state", "whole.safetensors", "--batch", "4"))
    images, encoder.calls = encoder.images, 0

    def interrupted(batch: list[object]) -> torch.Tensor:
        if encoder.calls >= 4:
            stop()
        return images(batch)

    encoder.images = interrupted  # type: ignore[method-assign]
    run("photos", *NAMES, *STATE, "--batch", "4", code=1)
    encoder.images = images  # type: ignore[method-assign]
    resumed = margins(run("photos", *NAMES, *STATE, "--batch", "5"))  # a batch of both kinds
    assert list(resumed) == list(whole)
    assert list(resumed.values())[4:] == pytest.approx(list(whole.values())[4:])
    assert int(loaded(tmp_path).snapshot.tally.seen) == 12


def test_what_a_killed_command_left_is_removed_and_nothing_else(tmp_path: Path, photos: Path) -> None:
    run("photos", *NAMES, *STATE)
    old = [".s.safetensors.abcd1234.partial", ".s.learned.safetensors.abcd1234.partial"]
    kept = [".s2.safetensors.abcd1234.partial", ".s.settings", ".s.space.safetensors.in_work_.partial"]
    for name in old + kept:
        (tmp_path / name).touch()
        if "in_work" not in name:
            os.utime(tmp_path / name, (0, 0))
    run("photos", *STATE)
    assert sorted(path.name for path in tmp_path.glob(".*")) == sorted(kept)


def test_after_a_kill_what_came_after_the_last_write_is_learned_again(
    tmp_path: Path, photos: Path, encoder: NamedColours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_run, "SAVING_SHARE", 1e-9)  # only the first batch is written on the way
    images, left = encoder.images, {}

    def watched(batch: list[object]) -> torch.Tensor:
        left.update({path: path.read_bytes() for path in tmp_path.glob("s.*safetensors")})  # what a kill would leave
        return images(batch)

    encoder.images = watched  # type: ignore[method-assign]
    whole = margins(run("photos", *NAMES, *STATE, "--batch", "1"))
    for path, content in left.items():
        path.write_bytes(content)
    assert int(loaded(tmp_path).snapshot.tally.seen) == 1
    result = run("photos", *NAMES, *STATE, "--batch", "1")
    assert rows(result)[-1]["summary"]["learned_before"] == 1
    assert list(margins(result).values())[1:] == pytest.approx(list(whole.values())[1:])


def test_saving_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = [0.0], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    class Saved(StreamRun):
        def save(self) -> None:
            now[0] += 0.3
            spent[0] += 0.3

    stream = Saved(Session(demo.load().space), choose(as_json=True, as_csv=False))
    while now[0] < 300:
        now[0] += 0.05
        stream.save_when_due()
    assert 0.01 < spent[0] / now[0] <= stream_run.SAVING_SHARE


def test_changed_files_are_new_and_again_learns_all(tmp_path: Path, photos: Path) -> None:
    run("photos", *NAMES, *STATE)
    Pillow.new("RGB", (20, 16), (9, 9, 9)).save(photos / "00-red.png")
    assert rows(run("photos", *STATE, "--json"))[-1]["summary"]["learned_before"] == 11
    last = rows(run("photos", *STATE, "--json", "--again"))[-1]["summary"]
    assert (last["learned_before"], last["seen"]) == (0, 25)
    assert rows(run("photos", *STATE, "--json"))[-1]["summary"]["learned_before"] == 12


def test_no_learn_leaves_every_file_as_it_is(tmp_path: Path, photos: Path) -> None:
    run("photos", *NAMES, *STATE, "--no-learn")
    assert not list(tmp_path.glob("s.*"))
    run("photos", *NAMES, *STATE)
    before = {path: path.read_bytes() for path in tmp_path.glob("s.*safetensors")}
    Pillow.new("RGB", (20, 16), (9, 9, 9)).save(photos / "00-red.png")
    run("photos", *STATE, "--no-learn")
    assert {path: path.read_bytes() for path in tmp_path.glob("s.*safetensors")} == before


def test_a_record_that_is_ahead_of_its_state_is_cut_and_long_ones_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_files, "MOST", 3)
    pictures = [Image(f"{i}.png", Pillow.new("RGB", (2, 2), (i, 0, 0))) for i in range(5)]
    record = LearnedFiles.of_state(tmp_path / "s", 0)
    assert record.claim([*pictures[:4], pictures[0]], 0).tolist() == [True] * 4 + [False]
    record.save()
    assert list(LearnedFiles.of_state(tmp_path / "s", 4).places.values()) == [1, 2, 3]
    crashed = LearnedFiles.of_state(tmp_path / "s", 2)  # the state was not written after the second image
    assert crashed.claim(pictures, 2).tolist() == [True, False, True, True, True]


def test_a_class_of_ones_own_is_a_detector_in_every_run(
    tmp_path: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.setattr(detectors, "_own", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = run("photos", *NAMES[:-1], *STATE, "--detector", "own:Halved")
    assert "detector halved" in result.stderr
    run("photos", *STATE, "--detector", "own:Halved")
    del detectors._own["halved"]
    with pytest.raises(SettingError, match=r"got 'halved'; check the spelling, or register .*--detector module:Class"):
        run("photos", *STATE)
    for name, message in (
        ("own:Absent", "has no attribute 'Absent'"),
        ("absent:Own", "No module named"),
        ("sys:path", "subclass"),
    ):
        with pytest.raises(SettingError, match=message):
            run("photos", *NAMES, "--detector", name)


def test_output_and_devices_are_checked_before_any_work(photos: Path, encoder: NamedColours) -> None:
    for options in (("--report", "absent/r.html"), ("--state", "absent/s"), ("--report", "photos")):
        with pytest.raises(SettingError, match=r"expected a (folder for|file to write)"):
            run("photos", *NAMES, *options)
    assert encoder.calls == 0
