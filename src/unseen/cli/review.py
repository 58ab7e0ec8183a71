"""unseen review: correct verdicts, and take kept images with their labels elsewhere."""

import csv
import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli import options, saved_state, terminal
from unseen.cli.calibrate import RECALL
from unseen.discover import edits
from unseen.discover.review import ReviewedImage, coco, confirmed_known, correct, fiftyone, latest_corrections, reviewed
from unseen.errors import DataError, check_choice
from unseen.storage.csv_cells import as_text_cell, of_text_cell
from unseen.storage.files import replacing
from unseen.storage.locks import locked

FORMATS = ("csv", "coco", "folder", "fiftyone")


def review(
    state: saved_state.State,
    corrections: Annotated[
        Path | None, typer.Option(help="CSV with key and name, as the page of `unseen group` gives; no name: unknown.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File or folder to write.")] = None,
    format: Annotated[
        str, typer.Option(help=f"What to write: {', '.join(FORMATS)}; folder makes one per label.")
    ] = "csv",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Set the threshold with the images that you said show a known name.")
    ] = False,
    recall: options.Recall = None,
    space: saved_state.Space = None,
    as_json: options.AsJson = False,
) -> None:
    """Record corrections of verdicts; export the kept images with labels (correction, or else verdict).

    Example: `unseen review --state state.safetensors --corrections corrections.csv -o labelled/ --format folder`

    Corrections are kept apart from verdicts; nothing is learned from them. A folder per label
    serves as `--examples` or `--calibrate`.
    """
    check_choice("a format", format, FORMATS)
    if corrections:
        edits.apply(state, saved_state.load_given_space(space), lambda session: correct(session, _read(corrections)))
    session = saved_state.open_session(state, space)
    rows = reviewed(session)
    found = {"images": len(rows), "corrected": len(latest_corrections(session)), "state": str(state)}
    if calibrate:
        found |= _calibrate(state, space, recall)
    if output:
        found |= {"output": str(output), "written": write(rows, output, format)}
    if as_json:
        terminal.emit(found)
        return
    print(" · ".join(f"{name} {value}" for name, value in found.items()))


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise DataError(f"expected a CSV at {path}, got {error.strerror}; check the path") from error
    if rows and not {"key", "name"} <= set(rows[0]):
        raise DataError(f"expected columns key and name in {path}, got {', '.join(rows[0])}; add a header: key,name")
    return {of_text_cell(row["key"]): of_text_cell(row["name"] or "") for row in rows}


def _calibrate(state: Path, space: Path | None, recall: float | None) -> dict[str, float]:
    with locked(state):
        session = saved_state.open_session(state, space)
        found = session.calibrate(confirmed_known(session), recall=RECALL if recall is None else recall)
        session.save(state)
    return {"calibrated_with": found.images, "threshold": session.threshold}


def write(rows: list[ReviewedImage], output: Path, format: str) -> int:
    """Write images with labels and return how many."""
    if format == "folder":
        return _folder(rows, output)
    with replacing(output) as temporary:
        if format == "csv":
            _csv(rows, temporary)
        else:
            maker = coco if format == "coco" else fiftyone
            temporary.write_text(json.dumps(maker(rows), ensure_ascii=False), encoding="utf-8")
    return len(rows)


def _csv(rows: list[ReviewedImage], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow((*ReviewedImage._fields, "label"))
        table.writerows(map(as_text_cell, (*row, row.label)) for row in rows)


def folder_name(label: str) -> str:
    """A label as the name of one folder inside another, whatever a person wrote.

    >>> folder_name("cat"), folder_name("24/7 shop"), folder_name("..")
    ('cat', '24_7 shop', '__')
    """
    written = "".join("_" if letter in "/\\\0" else letter for letter in label)
    return written.replace(".", "_") if set(written) == {"."} else written


def _folder(rows: list[ReviewedImage], output: Path) -> int:
    """Copy the files of images into a folder per label; keys that are no files are left out."""
    written = 0
    for place, row in enumerate(rows):
        if (source := Path(row.key)).is_file():
            target = output / folder_name(row.label) / f"{place:06d}-{source.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            written += 1
    if rows and not written:
        raise DataError("expected keys that are files, got none; run it in the folder from which the photos were read")
    return written
