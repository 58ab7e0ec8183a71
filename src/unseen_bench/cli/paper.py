"""unseen bench paper: every table and figure of the paper that the data at hand allows."""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.errors import UnseenError
from unseen_bench import run as harness
from unseen_bench import suites
from unseen_bench.cli.bench import encode_suite, run_with_progress
from unseen_bench.exhibits import page, paper_documents
from unseen_bench.exhibits import paper as report
from unseen_bench.run import paper as exhibits


def paper(
    data: Annotated[
        Path | None, typer.Option(help="Folder of images in OpenOOD's layout.", exists=True, file_okay=False)
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder of feature files, for the stand-ins.", exists=True, file_okay=False)
    ] = None,
    tables: Annotated[str | None, typer.Option(help="Only these, such as 1,9,13,F1.")] = None,
    seeds: Annotated[int, typer.Option(help="How many random orders; the paper has 10.", min=1)] = 10,
    workers: Annotated[int | None, typer.Option(help="Processes; as many as cores if not given.", min=1)] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for rows and the report; resumes.")] = Path(
        "results"
    ),
    as_json: options.AsJson = False,
) -> None:
    """Run every table and figure of the paper that the data at hand allows; write paper.html, paper.md and paper.tex.

    Example: `unseen bench paper --features features/ --tables 1,9,F1 --seeds 3 -o results/`

    With neither folder it runs nothing and writes which files each table needs. Rows are shared with `unseen bench`.
    """
    if data or features:
        page.check_plotting()
    sections, states = [], {}
    for exhibit in exhibits.select_exhibits(tables):
        found = exhibits.find(exhibit, data=data, features=features)
        states[exhibit.name] = found.state
        terminal.err.print(f"{exhibit.name}: {found.state}", markup=False)
        sections.append(_section(found, data, features, seeds, workers, device, out))
    written = [str(path) for path in paper_documents.write(out, sections)]
    if as_json:
        terminal.emit({"exhibits": states, "files": written})
        return
    for path in written:
        terminal.out.print(path, markup=False)


def _section(
    found: exhibits.AvailableSuites,
    data: Path | None,
    features: Path | None,
    seeds: int,
    workers: int | None,
    device: str,
    out: Path,
) -> report.ExhibitSection:
    """The section of an exhibit; a suite that cannot be loaded is named in its notes."""
    ran, failed = [], []
    for name in (*found.images, *found.features):
        try:
            suite = _load(name, data if name in found.images else features)
        except UnseenError as error:
            failed.append(f"{name} was left out: {error}")
            continue
        results = harness.ResultFolder(out, suite.name)
        runs = found.exhibit.runs(suite, seeds)
        rows = run_with_progress(suite, runs, results, None, workers=workers, device=device, as_json=False)
        ran.append((suite, rows))
    section = report.section(found, ran)
    section.notes.extend(failed)
    return section


def _load(name: str, folder: Path | None) -> suites.Suite:
    assert folder is not None
    return encode_suite(name, folder, None) if suites.needs_images(name) else suites.load(name, folder)
