"""Each attack that brought a service down once, for a moment: `benchmarks/attack.py` measures them at length."""

from __future__ import annotations

import pytest

import attack


@pytest.mark.timing
@pytest.mark.parametrize("name", attack.ATTACKS)
def test_an_attack_fails(name: str) -> None:
    # a busy machine makes everyone wait: here what an attack did counts, there also for how long
    row = attack.run(name, 0.5, within=10_000)
    assert row["passed"], row
