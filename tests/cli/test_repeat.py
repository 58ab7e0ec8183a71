"""unseen detect with the same state again, with a detector of one's own, with output that cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

from helpers.detect_command import rows, run
from helpers.tiny_models import NamedColours
from unseen import LabelSpace, Session, checkpoint, detectors
from unseen.cli import learned_files
from unseen.cli.learned_files import LearnedFiles
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


def test_after_ctrl_c_the_same_command_ends_as_a_run_that_was_never_stopped(
    tmp_path: Path,
    photos: Path,
    encoder: NamedColours,
) -> None:
    whole = margins(run("photos", *NAMES, "--state", "whole.safetensors", "--batch", "4"))
    images, encoder.calls = encoder.images, 0

    def interrupted(batch: list[object]) -> torch.Tensor:
        if encoder.calls >= 4:
            raise KeyboardInterrupt
        return images(batch)

    encoder.images = interrupted  # type: ignore[method-assign]
    run("photos", *NAMES, *STATE, "--batch", "4", code=1)
    encoder.images = images  # type: ignore[method-assign]
    resumed = margins(run("photos", *NAMES, *STATE, "--batch", "5"))  # a batch of both kinds
    assert list(resumed) == list(whole)
    assert list(resumed.values())[4:] == pytest.approx(list(whole.values())[4:])
    assert int(loaded(tmp_path).snapshot.tally.seen) == 12


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
    monkeypatch.setattr(detectors, "REGISTRY", dict(detectors.REGISTRY))
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = run("photos", *NAMES[:-1], *STATE, "--detector", "own:Halved")
    assert "detector halved" in result.stderr
    run("photos", *STATE, "--detector", "own:Halved")
    del detectors.REGISTRY["halved"]
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
