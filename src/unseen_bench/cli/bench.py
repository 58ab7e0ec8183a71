"""unseen bench and compare: run a suite, print its tables, write its report; what differs between two results."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import typer
from rich.progress import TaskID
from rich.table import Table as Grid

from unseen.cli import output
from unseen.errors import SettingError
from unseen.storage.files import replacing
from unseen_bench import run as harness
from unseen_bench import suites
from unseen_bench.exhibits import page, tables
from unseen_bench.exhibits.tables import verdict_tables
from unseen_bench.run import leaderboard

# the tables of the larger suites have nine columns, and a terminal has eighty
NARROW: Any = {"title_justify": "left", "box": None, "padding": (0, 1, 0, 0)}


class Source(NamedTuple):
    """Where samples come from: a suite, and a folder of feature files or of images."""

    suite: str | None
    features: Path | None
    data: Path | None
    encoder: str | None


class Plan(NamedTuple):
    """What is run on them, and where rows, tables and the page go."""

    detectors: str
    seeds: int
    out: Path | None


def run(source: Source, plan: Plan, *, device: str, as_json: bool) -> typer.Exit:
    """Run a suite, write and print its tables; 1 where some of its images are missing."""
    suite, features, data, encoder = source
    if suite is None:
        raise SettingError(f"expected a suite, got none; use one of {', '.join(suites.names())}")
    if (features is None) == (data is None):
        wanted = "--data, a folder of images" if suites.needs_images(suite) else "--features, a folder of feature files"
        raise SettingError(
            f"expected {wanted}, for {suite}, got {'none' if data is None else 'both'}; pass that folder"
        )
    check_device(device)
    complete = print_inventory(suite, data) if data else True
    loaded = encode_suite(suite, data, encoder) if data else suites.load(suite, cast(Path, features))
    arrivals = loaded.table.get("orders", "shuffled").split(",")
    names = plan.detectors.split(",") if plan.detectors else harness.DETECTORS
    runs = harness.list_runs(loaded, names=names, orders=arrivals, seeds=plan.seeds)
    results = harness.ResultFolder(plan.out, loaded.name) if plan.out else None
    rows = run_with_progress(loaded, runs, results, device=device, as_json=as_json)
    if results:
        write_tables(loaded, rows, results)
    if results and find_spec("matplotlib"):
        page.write(file := results.folder / f"{loaded.name}.html", loaded, rows, results)
        output.say(f"page with plots in {file}")
    if not as_json:
        print_tables(loaded, rows)
    return typer.Exit(output.DONE if complete else output.SKIPPED)


def print_comparisons(first: str, second: str, out: Path, *, as_json: bool) -> None:
    """Print which differences between two detectors, or two sets of results, are real."""
    if not as_json:
        output.say("differences in percentage points, with 95 % intervals over seeds and samples")
    for comparison in harness.compare(first, second, results=out):
        if as_json:
            output.emit(comparison.record())
        else:
            print(comparison)


def check_device(device: str) -> None:
    """Refuse a device that is not here before anything is loaded onto it."""
    if device != "cpu" and (not device.startswith("cuda") or not torch.cuda.is_available()):
        raise SettingError(f"expected --device cpu, or cuda where torch finds a GPU, got {device!r}; leave it out")


def print_found(suite: str | None, folder: Path) -> bool:
    """Print what a folder holds of a suite, or of every suite; return whether nothing is missing."""
    complete = True
    for name in [suite] if suite else suites.names():
        output.err.print(f"[bold]{Path(name).stem}[/]")
        if suites.needs_images(name):
            complete &= print_inventory(name, folder)
        else:
            for file in suites.feature_files_of(name):
                here = (folder / file).is_file()
                output.err.print(f"{file:<38} {'here' if here else '  ← missing'}", markup=False)
                complete &= here
    return complete


def print_standing(name: str, features: Path | None, out: Path | None) -> None:
    """Print a method's line of the leaderboard, after every check of it passed."""
    if features is None:
        raise SettingError("expected --features with --submit, got none; the leaderboard runs on stored features")
    line = leaderboard.submit(name, features, out=out)
    output.out.print("\n".join(harness.markdown_table(leaderboard.HEADS, [line.cells()])))


def print_inventory(suite: str, root: Path) -> bool:
    """Print what was found of every set and what should be there; return whether nothing is missing."""
    for one in suites.inventory(suite, root):
        expected = f" of {one.expected:,}" if one.expected else ""
        absent = f", {one.absent:,} listed but absent" if one.absent else ""
        where = f"looked for in {one.looked_for}"
        mark = "" if one.is_complete else "  ← incomplete" if one.images else f"  ← missing, left out: {where}"
        note = "  (known to contain known classes)" if one.unclean else ""
        output.err.print(f"{one.set:<14} {one.images:>7,}{expected} images{absent}{mark}{note}", markup=False)
    learned = suites.learned_file(suite)
    if learned and not (root / learned).is_file():
        output.err.print(f"{learned}  ← missing: `unseen bench learn --method lapt` writes it", markup=False)
    return suites.is_whole(suite, root)


def encode_suite(suite: str, root: Path, encoder: str | None) -> suites.Suite:
    """A suite over images, with a bar while they are encoded."""
    with output.progress("images") as bar:
        tasks: dict[str, TaskID] = {}

        def report(which: str, done: int, total: int) -> None:
            if which not in tasks:
                tasks[which] = bar.add_task(which, total=total, rate="")
            bar.update(tasks[which], completed=done)

        return suites.load_images(suite, root, encoder=encoder, progress=report)


def run_with_progress(
    suite: suites.Suite,
    runs: list[harness.Run],
    results: harness.ResultFolder | None,
    *,
    device: str,
    as_json: bool,
) -> list[harness.Row]:
    """The row of every run, with a bar that counts samples, because runs differ in length."""
    if results:
        results.folder.mkdir(parents=True, exist_ok=True)
    sizes = dict(zip(suite.pool.sources, suite.pool.source.bincount().tolist(), strict=True))
    lengths = {run: sizes[suites.KNOWN] + sum(sizes[name] for name in run.sets) for run in runs}
    rows = []
    with output.progress("samples") as bar:
        task = bar.add_task(suite.name, total=sum(lengths.values()), rate="")
        for run, row in harness.run_all(suite, runs, results, device=device):
            rows.append(row)
            bar.update(task, advance=lengths[run], rate=f"{run.detector} on {', '.join(run.sets)}")
            if as_json:
                output.emit(row)
    return rows


def write_tables(suite: suites.Suite, rows: list[harness.Row], results: harness.ResultFolder) -> None:
    """Write the tables as Markdown and as LaTeX beside the rows."""
    found = [table.grid(suite.unclean) for table in tables.tables(rows, suite)]
    texts = {
        ".md": "\n\n".join(f"### {one.title}\n\n{one.markdown()}" for one in found),
        ".tex": "\n\n".join(f"% {one.title}\n{one.latex()}" for one in found),
    }
    for suffix, text in texts.items():
        with replacing(results.folder / f"{suite.name}{suffix}") as temporary:
            temporary.write_text(f"{text}\n")


def print_tables(suite: suites.Suite, rows: list[harness.Row]) -> None:
    """Print one table per kind and order: what sees more than features never shares a column with what does not."""
    output.out.print(f"[bold]{suite.name}[/]: {suite.about}")
    output.out.print(f"{suite.labels}; AUROC over FPR95 in percent, deviation over seeds\n")
    for judged in verdict_tables(rows)[:1]:
        grid = Grid(*judged.heads, title=judged.title, **NARROW)
        grid.columns[0].no_wrap = True  # the name of a method tells lines apart
        for texts in judged.lines:
            grid.add_row(*texts)
        output.out.print(grid)
    for table in tables.tables(rows, suite):
        grid = Grid(title=table.title, **NARROW)
        grid.add_column("method", no_wrap=True)
        for name in (*table.columns, "right name", "µs", "state"):
            grid.add_column(name, overflow="fold", justify="right")
        for line in table.lines:
            forms = {name: "{} ±{}" if name in table.groups else "{}" for name in table.columns}
            cells = ("\n".join(tables.texts(line.cells.get(name), forms[name], line.digits)) for name in forms)
            name = f"[dim]{line.method}, as printed[/]" if line.printed else line.method
            costs = (
                tables.number_text(line.accuracy),
                tables.number_text(line.microseconds, 0),
                tables.size(line.state_bytes),
            )
            grid.add_row(name, *cells, *costs)
        output.out.print(grid)
        output.out.print(table.reduced_note, style="dim")
