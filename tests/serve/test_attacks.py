"""Each attack that brought a service down once, for a moment: `benchmarks/attack.py` measures them at length."""

from __future__ import annotations

import pytest

import attack

# a busy machine makes everyone wait: here what an attack did counts, there also for how long
SECONDS = 0.5


@pytest.mark.parametrize("name", attack.ATTACKS)
def test_an_attack_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack, "MOST_SECONDS", 10.0)
    row = attack.run(name, SECONDS)
    assert row["passed"], row
