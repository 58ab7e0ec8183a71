"""unseen detect --sort-into: a plan, links or copies, and a way back."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from helpers.commands import rows, run
from unseen.errors import DataError, SettingError

pytestmark = pytest.mark.usefixtures("encoder", "photos")
SORT = ("detect", "photos", "--label", "red", "--label", "green", "--json", "--sort-into", "out")


def files() -> list[Path]:
    return sorted(path for path in Path("out").rglob("*") if not path.is_dir() and path.name != "sorted.jsonl")


def expected(result) -> list[tuple[str, str]]:
    judged = [row for row in rows(result) if "verdict" in row]
    return sorted((row["name"] if row["verdict"] == "known" else row["verdict"], row["key"]) for row in judged)


def test_a_plan_makes_nothing():
    result = run(*SORT)
    assert "would sort 12 photos into out: " in result.stderr
    assert "--sort-as link" in result.stderr
    assert not Path("out").exists()


@pytest.mark.parametrize("way", ["link", "copy"])
def test_photos_go_to_the_folder_of_their_verdict_and_back(way):
    result = run(*SORT, "--sort-as", way)
    found = [(path.parent.name, f"photos/{path.name}") for path in files()]
    assert sorted(found) == expected(result)
    assert {path.is_symlink() for path in files()} == {way == "link"}
    assert all(path.read_bytes() == (Path("photos") / path.name).read_bytes() for path in files())
    with pytest.raises(SettingError, match=r"unseen undo --state out/sorted.jsonl"):
        run(*SORT, "--sort-as", way)
    changed = files()[0]
    changed.unlink()
    changed.write_text("mine")
    assert rows(run("undo", "--state", "out/sorted.jsonl", "--json")) == [{"removed": 11, "left": 1}]
    assert files() == [changed]
    assert len(list(Path("photos").iterdir())) == 12


def test_of_two_photos_with_one_name_neither_is_lost(photos):
    (photos / "sub").mkdir()
    (photos / "sub" / "00-red.png").write_bytes((photos / "00-red.png").read_bytes())
    run(*SORT, "--sort-as", "copy")
    assert len(files()) == 13


def test_only_what_is_wanted_is_sorted():
    result = run(*SORT, "--only", "unknown")
    assert "unknown 4" in result.stderr
    assert "red" not in result.stderr.partition("would sort")[2]


def test_a_way_that_is_none_and_keys_that_are_no_files_are_refused():
    with pytest.raises(SettingError, match="expected a way to sort out of plan, link, copy, got 'move'"):
        run(*SORT, "--sort-as", "move")
    with tarfile.open("photos.tar", "w") as tar:
        tar.add("photos")
    with pytest.raises(DataError, match="expected keys that are files, got none"):
        run(*SORT[:1], "photos.tar", *SORT[2:])
