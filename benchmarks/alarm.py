"""How often the alarm is false, and how soon it notices a change.

python benchmarks/alarm.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from unseen.alarm import AlarmState, UnknownRateAlarm

Draw = Callable[[np.random.Generator, int], np.ndarray]


def waited(rule: UnknownRateAlarm, draw: Draw, generator: np.random.Generator, most: int) -> int:
    """After how many samples the alarm is raised, `most` at most."""
    state: AlarmState = rule.start()
    while state.raised_at is None and state.seen < most:
        state = rule.update(state, draw(generator, 256))
    return most if state.raised_at is None else state.raised_at + 1


def line(what: str, rule: UnknownRateAlarm, draw: Draw, rounds: int) -> None:
    generator = np.random.default_rng(0)
    times = [waited(rule, draw, generator, int(200 * rule.between)) for _ in range(rounds)]
    error = np.std(times) / math.sqrt(rounds)
    print(f"| {what} | {rule.between:,.0f} | {np.mean(times):,.0f} ± {error:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("| stream | stated: images between false alarms | mean images until an alarm |\n|---|--:|--:|")
    for allowed in (0.05, 0.3):
        rule = UnknownRateAlarm(allowed, between=1_000)
        line(f"{100 * allowed:.0f} % unknown, as allowed", rule, lambda g, n, p=allowed: g.random(n) < p, rounds)
    for rate in (0.3, 0.4, 0.6):
        rule = UnknownRateAlarm(0.2)
        line(f"{100 * rate:.0f} % unknown, 20 % allowed", rule, lambda g, n, p=rate: g.random(n) < p, rounds)


if __name__ == "__main__":
    main()
