"""How verdicts are printed."""

from __future__ import annotations

import pytest

from unseen.cli import output
from unseen.errors import SettingError

KNOWN = {"key": "a.jpg", "verdict": "known", "name": "cat", "nearest": "cat", "margin": 3.0, "threshold": 0.4}
KNOWN |= {"confidence": 0.95, "warming": False}
UNKNOWN = KNOWN | {"key": "b.jpg", "verdict": "unknown", "name": None, "margin": -2.0, "confidence": 0.12}


def test_text_has_the_probability_of_the_verdict_itself() -> None:
    assert output.sentence(KNOWN).split() == ["a.jpg", "cat", "known", "95", "%", "likely"]
    assert output.sentence(UNKNOWN).split() == ["b.jpg", "(nearest:", "cat)", "unknown", "88", "%", "likely"]
    assert output.sentence(UNKNOWN | {"warming": True}).endswith("88 % likely  (young)")
    assert output.sentence(UNKNOWN | {"confidence": None}).endswith("? % likely")


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


def test_two_outputs_at_once_are_refused() -> None:
    with pytest.raises(SettingError, match="expected --json or --csv, got both"):
        output.choose(as_json=True, as_csv=True)
