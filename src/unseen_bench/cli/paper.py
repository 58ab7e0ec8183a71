"""unseen bench paper: every table and figure of the paper that the data at hand allows."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import typer

from unseen.cli import output
from unseen.errors import UnseenError
from unseen_bench import run as harness
from unseen_bench import suites
from unseen_bench.cli.bench import check_device, encode_suite, run_with_progress
from unseen_bench.exhibits import page
from unseen_bench.exhibits import paper as report
from unseen_bench.run import paper as exhibits


class Setting(NamedTuple):
    """Where samples come from, how runs are made, and where rows and the report go."""

    data: Path | None
    features: Path | None
    encoder: str | None
    seeds: int
    device: str
    out: Path


def run(given: Setting, tables: str | None, *, as_json: bool) -> typer.Exit:
    """Run every exhibit that the data at hand allows, and write the report; 1 where anything is missing."""
    check_device(given.device)
    if given.data or given.features:
        page.check_plotting()
    outcomes, load = [], cache(_load)  # a suite stands in many tables
    for exhibit in exhibits.select_exhibits(tables):
        outcome = exhibits.find(exhibit, data=given.data, features=given.features)
        for name in (*outcome.images, *outcome.stand_ins):
            try:
                suite = load(name, given.data if name in outcome.images else given.features, given.encoder)
            except UnseenError as error:
                outcome.missing.append(f"{name} was left out: {error}")
                continue
            results, runs = harness.ResultFolder(given.out, suite.name), exhibit.runs(suite, given.seeds)
            rows = run_with_progress(suite, runs, results, device=given.device, as_json=False)
            outcome.add(suite, rows)
        output.say(f"{exhibit.name}: {outcome.state}")
        outcomes.append(outcome)
    written = list(map(str, report.write(given.out, outcomes)))
    has = {"data": given.data is not None, "features": given.features is not None}
    incomplete = [one for one in outcomes if not one.is_complete(**has)]
    _print_result(outcomes, incomplete, written, as_json=as_json)
    return typer.Exit(output.SKIPPED if incomplete else output.DONE)


def _load(name: str, folder: Path | None, encoder: str | None) -> suites.Suite:
    assert folder is not None
    if not suites.needs_images(name):
        return suites.load(name, folder)
    is_usual = suites.read(name).get("encoder", suites.ENCODER) == suites.ENCODER
    return encode_suite(name, folder, encoder if is_usual else None)


def _print_result(
    outcomes: list[exhibits.Outcome], incomplete: list[exhibits.Outcome], written: list[str], *, as_json: bool
) -> None:
    if as_json:
        states = {one.exhibit.name: {"state": one.state, "missing": one.missing} for one in outcomes}
        names = [one.exhibit.name for one in incomplete]
        output.emit({"exhibits": states, "incomplete": names, "files": written})
        return
    for one in incomplete:
        output.say(f"{one.exhibit.name} is incomplete: {'; '.join(one.missing)}")
    for path in written:
        print(path)
