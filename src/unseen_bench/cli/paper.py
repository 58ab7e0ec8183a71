"""unseen bench paper: every table and figure of the paper that the data at hand allows."""

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, terminal
from unseen.errors import UnseenError
from unseen_bench import run as harness
from unseen_bench import suites
from unseen_bench.cli.bench import check_device, encode_suite, run_with_progress
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
    encoder: Annotated[
        str | None, typer.Option(help="Reads --data in place of ViT-B/16; other backbones stay what they are.")
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

    With neither folder it runs nothing and writes which files each table needs. A table of which anything is missing
    says so in its head, and the exit code is 1. `unseen bench imagenet --check DIR` lists what is there.
    """
    check_device(device)
    if data or features:
        page.check_plotting()
    outcomes = []
    for exhibit in exhibits.select_exhibits(tables):
        plan = exhibits.find(exhibit, data=data, features=features)
        outcome = exhibits.Outcome(plan, missing=list(plan.missing))
        for name in (*plan.images, *plan.stand_ins):
            try:
                suite = _load(name, data if name in plan.images else features, encoder)
            except UnseenError as error:
                outcome.missing.append(f"{name} was left out: {error}")
                continue
            results, runs = harness.ResultFolder(out, suite.name), exhibit.runs(suite, seeds)
            rows = run_with_progress(suite, runs, results, None, workers=workers, device=device, as_json=False)
            outcome.add(suite, rows)
        terminal.err.print(f"{exhibit.name}: {outcome.state}", markup=False)
        outcomes.append(outcome)
    written = [str(path) for path in paper_documents.write(out, [report.section(one) for one in outcomes])]
    incomplete = [one for one in outcomes if not one.is_complete(data=data is not None, features=features is not None)]
    _print_result(outcomes, incomplete, written, as_json=as_json)
    raise typer.Exit(terminal.SKIPPED if incomplete else terminal.DONE)


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
        terminal.emit({"exhibits": states, "incomplete": names, "files": written})
        return
    for one in incomplete:
        terminal.err.print(f"{one.exhibit.name} is incomplete: {'; '.join(one.missing)}", markup=False)
    for path in written:
        terminal.out.print(path, markup=False)
