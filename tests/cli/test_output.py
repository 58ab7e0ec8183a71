"""How verdicts are printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.cli import output
from unseen.errors import SettingError

KNOWN = {"key": "a.jpg", "verdict": "known", "name": "cat", "nearest": "cat", "margin": 3.0, "threshold": 0.4}
KNOWN |= {"confidence": 0.95, "warming": False}
UNKNOWN = KNOWN | {"key": "b.jpg", "verdict": "unknown", "name": None, "margin": -2.0, "confidence": 0.12}


def test_text_has_verdict_its_own_probability_name_margin_and_threshold() -> None:
    assert " ".join(output.verdict_line(KNOWN).split()) == "a.jpg known 95 % likely cat 3.00 ≥ 0.40"
    assert " ".join(output.verdict_line(UNKNOWN).split()) == "b.jpg unknown 88 % likely near cat -2.00 < 0.40"
    assert output.verdict_line(UNKNOWN | {"warming": True}).endswith("-2.00 <  ~0.40")
    assert "  ? % likely" in output.verdict_line(UNKNOWN | {"confidence": None})
    assert "unknown only    12 %" in output.verdict_line(UNKNOWN | {"confidence": 0.88})


def test_lines_fit_eighty_columns_and_are_whole_in_a_pipe() -> None:
    long = UNKNOWN | {"key": "photos/" * 9 + "b.jpg", "nearest": "soft-coated wheaten terrier " * 3, "margin": -123.45}
    assert len(output.verdict_line(long)) == len(output.verdict_line(KNOWN)) == 80
    assert str(long["key"]) in output.verdict_line(long, most=0)
    assert str(long["nearest"]) in output.verdict_line(long, most=0)


def test_columns_align_in_a_pipe_however_long_the_keys_are(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output.choose(as_json=False, width=40)
    lines.verdict(KNOWN)
    lines.verdict(UNKNOWN | {"key": "b" * 40})
    known, unknown = capsys.readouterr().out.splitlines()
    assert known.index("known") == unknown.index("unknown") == 41


def test_csv_has_the_fields_of_json_and_reasons_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    table = output.choose(as_json=False, as_csv=True)
    table.verdict(UNKNOWN)
    table.skipped("c.png", "truncated file")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "key,verdict,name,nearest,margin,threshold,confidence,warming",
        "b.jpg,unknown,,cat,-2.0,0.4,0.12,False",
        "c.png,skipped,,,,,,",
    ]
    assert "c.png  skipped: truncated file" in printed.err


def test_a_key_that_a_spreadsheet_would_compute_is_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    table = output.choose(as_json=False, as_csv=True)
    table.verdict(UNKNOWN | {"key": "=1+1.jpg"})
    table.skipped("@c.png", "truncated file")
    assert capsys.readouterr().out.splitlines()[1:] == [
        "'=1+1.jpg,unknown,,cat,-2.0,0.4,0.12,False",
        "'@c.png,skipped,,,,,,",
    ]


def test_two_outputs_at_once_are_refused() -> None:
    with pytest.raises(SettingError, match="expected --json or --csv, got both"):
        output.choose(as_json=True, as_csv=True)


def test_what_would_move_the_cursor_is_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert output.verdict_line(KNOWN | {"key": "a\nb\x1b[2J.jpg"}).startswith("a\\nb\\x1b[2J.jpg ")
    output.choose(as_json=False).skipped("c\td.png", "empty file")
    assert capsys.readouterr().out.startswith("c\\td.png ")


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
