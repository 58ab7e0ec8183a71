"""How verdicts are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from unseen.cli import output
from unseen.errors import SettingError
from unseen.verdicts import FIELDS

KNOWN = {"key": "a.jpg", "verdict": "known", "name": "cat", "nearest": "cat", "margin": 3.0, "threshold": 0.4}
KNOWN |= {"p_known": 0.95, "warming": False}
DOUBTFUL = KNOWN | {"verdict": "doubtful", "p_known": 0.31}
UNKNOWN = KNOWN | {"key": "b.jpg", "verdict": "unknown", "name": None, "margin": -2.0, "p_known": 0.12}


def test_a_line_has_image_verdict_name_and_p_known() -> None:
    assert " ".join(output.verdict_line(KNOWN).split()) == "a.jpg known cat 95 %"
    assert " ".join(output.verdict_line(DOUBTFUL).split()) == "a.jpg doubtful cat? 31 %"
    assert " ".join(output.verdict_line(UNKNOWN).split()) == "b.jpg unknown near cat 12 %"
    assert output.verdict_line(UNKNOWN | {"warming": True}) == output.verdict_line(UNKNOWN)
    assert output.verdict_line(UNKNOWN | {"p_known": None}).endswith("  ? %")
    assert output.verdict_line(KNOWN | {"key": "a\nb\x1b[2J.jpg"}).startswith("a\\nb\\x1b[2J.jpg ")  # no cursor moves


def test_only_the_verdicts_that_are_wanted_are_written_and_skipped_inputs_go_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with output.Format.of(as_json=False, only=["doubtful", "unknown"]).lines() as lines:
        for record in (KNOWN, DOUBTFUL, UNKNOWN):
            lines.verdict(record)
        lines.skipped("c.png", "truncated file")
    printed = capsys.readouterr()
    assert [line.split()[1] for line in printed.out.splitlines()] == ["doubtful", "unknown"]
    assert "c.png  skipped: truncated file" in printed.err
    with pytest.raises(SettingError, match="expected a verdict out of"):
        output.Format.of(as_json=False, only=["maybe"])


LONG = {"key": "photos/" * 9 + "b.jpg", "nearest": "soft-coated wheaten terrier " * 3, "margin": -123.45}


@pytest.mark.parametrize("name", ["cat", "soft-coated wheaten terrier " * 3, "柴犬" * 20])
@pytest.mark.parametrize("key", ["b.jpg", "photos/" * 9 + "b.jpg", "写真/" * 20])
@pytest.mark.parametrize("columns", [30, 40, 79, 80, 200])
def test_lines_fit_the_terminal(columns: int, key: str, name: str) -> None:
    wide = output.widths(columns, output.longest([key]), output.longest([name]))
    for record in (one | {"key": key, "nearest": name} for one in (UNKNOWN, DOUBTFUL, KNOWN)):
        lines = output.verdict_line(record, wide).splitlines()
        assert len(lines) == (1 if columns >= 80 else 2)
        assert max(map(cell_len, lines)) <= max(columns, 40)


def test_names_lose_their_middle_and_lines_are_whole_in_a_pipe() -> None:
    line = output.verdict_line(UNKNOWN | LONG | {"nearest": "soft-coated wheaten dog terrier"})
    assert "near soft-coated w…dog terrier " in line
    line = output.verdict_line(UNKNOWN | LONG, output.widths(0, output.longest([str(LONG["key"])]), 90))
    assert str(LONG["key"]) in line
    assert str(LONG["nearest"]) in line


@pytest.mark.parametrize("width", [40, 100])
def test_columns_align_in_a_pipe_however_long_keys_and_names_are(
    capsys: pytest.CaptureFixture[str], width: int
) -> None:
    with output.Format().lines(key=width, name=width) as lines:
        lines.verdict(KNOWN)
        lines.verdict(UNKNOWN | {"key": "b" * width, "nearest": "n" * width})
        lines.verdict(UNKNOWN | {"key": "写" * (width // 2), "nearest": "犬"})
    known, *unknown = capsys.readouterr().out.splitlines()
    assert known.index(" known") == unknown[0].index(" unknown") == width
    assert {cell_len(line) for line in unknown} == {cell_len(known)}


def test_csv_has_the_fields_of_json_as_text_and_reasons_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.FIELDS == FIELDS
    with output.Format(as_csv=True).lines() as table:
        table.verdict(UNKNOWN | {"key": "=1+1.jpg"})
        table.skipped("@c.png", "truncated file")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "key,verdict,name,nearest,margin,threshold,p_known,warming,likely",
        "'=1+1.jpg,unknown,,cat,-2.0,0.4,0.12,False,",  # text for a spreadsheet, not a formula
        "'@c.png,skipped,,,,,,,",
    ]
    assert "@c.png  skipped: truncated file" in printed.err


def test_a_folder_without_permission_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output.check_folders(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []  # the trial leaves nothing behind

    def refuse(**options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere
    with pytest.raises(SettingError, match=r"got .* \(Read-only file system\); pass another path"):
        output.check_folders(tmp_path / "state")
