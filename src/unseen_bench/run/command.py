"""One style of arguments and output for the files in benchmarks/: each asks one question of `unseen_bench.run`."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from unseen_bench.run.results import Case, Row, run_experiment

Arguments = argparse.Namespace


def parser(
    doc: str | None, *, features: bool = False, resumes: bool = False, seeds: int = 0
) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks share.

    `features` adds the folder of stored features, `resumes` the file of rows, `seeds` how many there are by default.
    """
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if features:
        found.add_argument("folder", type=Path, help="the stored features")
    if resumes:
        found.add_argument("--rows", type=Path, help="JSON lines to resume from and to append to")
    if seeds:
        found.add_argument("--seeds", type=int, default=seeds, help=f"how many ({seeds})")
        found.add_argument("--first-seed", type=int, default=0, help="where to begin (0)")
    found.add_argument("--threads", type=int, default=1, help="of torch (1)")
    found.add_argument("--json", action="store_true", help="print one JSON object per row")
    return found


def parse(parser: argparse.ArgumentParser) -> Arguments:
    """The arguments of the command line, and give torch its threads."""
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    return arguments


def seeds(arguments: Arguments) -> range:
    """The seeds that were asked for."""
    return range(arguments.first_seed, arguments.first_seed + arguments.seeds)


def run_and_print(cases: Iterable[Case], arguments: Arguments, table: Callable[[list[Row]], Iterable[str]]) -> None:
    """Run an experiment, resuming from --rows, and print its rows as JSON or its table."""
    show(run_experiment(cases, arguments.rows, progress=progress), arguments, table)


def show(
    rows: Iterable[Row], arguments: Arguments, table: Callable[[list[Row]], Iterable[str]] | None = None
) -> list[Row]:
    """The rows, printed as they come, as JSON or as text; with `table`, what it makes of all in place of the text."""
    found = []
    for row in rows:
        found.append(row)
        if arguments.json or not table:
            print(json.dumps(row) if arguments.json else line(row), flush=True)
    if table and not arguments.json:
        print("\n".join(table(found)))
    return found


def line(row: Row) -> str:
    """A row as text: the first field, then every other with its name."""
    first, *rest = row.items()
    texts = (f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in rest)
    return f"{first[1]!s:<30} " + " · ".join(texts)


def progress(done: int, total: int) -> None:
    """Write how many cases are done where a person watches."""
    if sys.stderr.isatty():
        print(f"\r{done} / {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def require_passing_tests(repository: Path, *tests: str) -> None:
    """Stop if tests fail: the speed of wrong numbers means nothing."""
    command = [sys.executable, "-m", "pytest", "-q", *tests]
    if subprocess.run(command, cwd=repository, capture_output=True).returncode:
        sys.exit(f"`pytest {' '.join(tests)}` fails: repair it, then measure again")


def alternating_seconds(
    works: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The times of several works in alternation, so that other work on the machine slows all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            started = clock()
            work()
            seconds[name].append(clock() - started)
    return seconds


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """The median and the 99th percentile of some seconds, in milliseconds."""
    found = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [*times] * 99
    return {"p50_ms": 1e3 * found[49], "p99_ms": 1e3 * found[98]}
