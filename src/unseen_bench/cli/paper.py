"""unseen bench paper: every table and figure of the paper that the data at hand allows."""

from pathlib import Path
from typing import NamedTuple

from unseen.cli import output
from unseen.errors import UnseenError
from unseen_bench import run as harness
from unseen_bench import suites
from unseen_bench.cli.bench import encode_suite, run_with_progress
from unseen_bench.exhibits import page, paper_documents
from unseen_bench.exhibits import paper as report
from unseen_bench.run import paper as exhibits


class Setting(NamedTuple):
    """Where samples come from, how runs are made, and where rows and the report go."""

    data: Path | None
    features: Path | None
    seeds: int
    workers: int | None
    device: str
    out: Path


def run(setting: Setting, tables: str | None, *, as_json: bool) -> None:
    """Run every exhibit that the data at hand allows, and write the report."""
    if setting.data or setting.features:
        page.check_plotting()
    sections, states = [], {}
    for exhibit in exhibits.select_exhibits(tables):
        found = exhibits.find(exhibit, data=setting.data, features=setting.features)
        states[exhibit.name] = found.state
        output.say(f"{exhibit.name}: {found.state}")
        sections.append(_section(found, setting))
    written = [str(path) for path in paper_documents.write(setting.out, sections)]
    if as_json:
        output.emit({"exhibits": states, "files": written})
        return
    for path in written:
        print(path)


def _section(found: exhibits.AvailableSuites, setting: Setting) -> report.ExhibitSection:
    """The section of an exhibit; a suite that cannot be loaded is named in its notes."""
    ran, failed = [], []
    for name in (*found.images, *found.features):
        try:
            suite = _load(name, setting.data if name in found.images else setting.features)
        except UnseenError as error:
            failed.append(f"{name} was left out: {error}")
            continue
        results = harness.ResultFolder(setting.out, suite.name)
        runs = found.exhibit.runs(suite, setting.seeds)
        rows = run_with_progress(
            suite, runs, results, None, workers=setting.workers, device=setting.device, as_json=False
        )
        ran.append((suite, rows))
    section = report.section(found, ran)
    section.notes.extend(failed)
    return section


def _load(name: str, folder: Path | None) -> suites.Suite:
    assert folder is not None
    return encode_suite(name, folder, None) if suites.needs_images(name) else suites.load(name, folder)
