"""From unknown to known: why an image got its verdict, groups of unknown images, corrections."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import options, output, sort
from unseen.errors import DataError, check_choice
from unseen.storage.csv_cells import as_text_cell, of_text_cell

if TYPE_CHECKING:
    from torch import Tensor

    from unseen import Session
    from unseen.discover import Group, Grouping
    from unseen.discover.review import ReviewedImage
    from unseen.images.regions import Region

SHOWN = 20  # groups that are printed
FORMATS = ("csv", "coco", "folder", "fiftyone", "label-studio", "cvat")


def explain(
    photos: Annotated[list[str], typer.Argument(help="Photos, or keys of some that the state has kept.")],
    state: options.SavedState,
    as_json: options.AsJson = False,
) -> None:
    """Print why a photo is known or unknown: nearest names, nearest negatives, similar earlier photos, margin.

    Example: `unseen explain photos/b.jpg --state state.safetensors`

    Nothing is learned. A photo that the state has seen is explained from its vector, without an encoder.
    """
    from unseen.cli import spaces
    from unseen.discover import explain as explanation_of

    session = spaces.open_session(state)
    held = spaces.vectors_beside(state, session.detector.labels)
    vectors = [one for photo in photos for one in _vectors(session, photo, held)]
    for one in (explanation_of(session, z, key=key) for key, z in vectors):
        if as_json:
            output.emit(one.row())
        else:
            print("\n".join(one.lines()))


def _vectors(session: Session, photo: str, held: Mapping[tuple[str, str], Tensor]) -> list[tuple[str, Tensor]]:
    """Key and vector of a kept image, or of the images at a path, of which some have vectors beside the state."""
    from unseen.cli import spaces
    from unseen.features import stream_images
    from unseen.images import find_images

    kept = session.reservoir.images
    if photo in (called := kept.names()):
        return [(photo, kept.features[called.index(photo)])]
    if found := [z for (key, _), z in held.items() if key == photo and not Path(photo).exists()]:
        return [(photo, found[-1].float())]  # a part of a photo, a member of an archive
    try:
        entries = find_images(photo)
    except DataError as error:
        raise DataError(
            f"{error}, or pass the key of one of the {len(kept):,} images that the state has kept"
        ) from error
    entries = list(entries)
    if all((entry.path, entry.identity) in held for entry in entries):
        return [(entry.path, held[entry.path, entry.identity].float()) for entry in entries]
    model = spaces.encoder_of(session.detector.labels)
    batches = stream_images(entries, model)
    rows = [(image.path, z) for batch, vectors in batches for image, z in zip(batch, vectors, strict=True)]
    if not rows:
        raise DataError(f"expected a photo that can be read, got none in {photo}; pass a photo, such as photos/b.jpg")
    return rows


def group(
    state: options.SavedState,
    report: Annotated[Path | None, typer.Option(help="HTML file to write, to look at and to correct.")] = None,
    as_json: options.AsJson = False,
    words: Annotated[
        str, typer.Option(help="Where names come from: wordnet, negatives (of the label space; no encoder), or a file.")
    ] = "wordnet",
) -> None:
    """Group the unknown images of a state; print exemplars and suggested names of each group.

    Example: `unseen group --state state.safetensors`, then `unseen promote 3 "sea urchin" --state state.safetensors`

    Groups keep their numbers as the stream goes on.
    """
    output.check_folders(report)
    from unseen.cli import spaces
    from unseen.discover import group as grouped
    from unseen.storage.files import locked

    vocabulary = spaces.load_vocabulary(words, spaces.open_session(state).detector.labels)
    with locked(state):  # the state may have gone on meanwhile
        found = grouped(spaces.open_session(state), vocabulary)
        found.session.save(state)
    if report:
        from unseen.report import group_page

        title, thumbnails = f"unseen group: {state}", _thumbnails(found, state)
        group_page.write(report, found, title=title, thumbnails=thumbnails, state=str(state))
    growing = [one.number for one in found.groups if one.growing]
    if as_json:
        for one in found.groups:
            output.emit(one.row())
        counts = {"groups": len(found.groups), "grouped": found.grouped, "unknown": found.unknown, "growing": growing}
        output.emit({"summary": counts, "report": report and str(report)})
        return
    for one in found.groups[:SHOWN]:
        print("\n".join(group_lines(one)))
    groups = "1 group holds" if len(found.groups) == 1 else f"{len(found.groups)} groups hold"
    parts = [f"{groups} {found.grouped:,} of {found.unknown:,} unknown images kept"]
    parts += [f"{len(found.groups) - SHOWN} more groups: --json"] if len(found.groups) > SHOWN else []
    parts += [f"alarm: many new images in group {', '.join(map(str, growing))}"] if growing else []
    parts += [f"report in {report}"] if report else []
    print(" · ".join(parts))


def _thumbnails(found: Grouping, state: Path) -> dict[str, bytes]:
    """Thumbnails of the exemplars that are files, or parts of files, and can be read here."""
    from unseen.cli.regions import kept_boxes
    from unseen.images import find_images
    from unseen.images.decode import jpeg_thumbnail
    from unseen.images.regions import entries_of
    from unseen.images.sources import read_entries
    from unseen.report.stream_page import NUMBERS

    shown = [key for one in found.groups for key in one.exemplars]
    files, boxes = [key for key in shown if Path(key).is_file()], kept_boxes(state)
    parts = entries_of({key: boxes[key] for key in shown if key in boxes})
    batches = read_entries([*(find_images(files) if files else ()), *parts], size=32)
    return {
        image.path: jpeg_thumbnail(image.pixels, 2 * NUMBERS.side, quality=72) for batch in batches for image in batch
    }


def group_lines(one: Group) -> list[str]:
    """A group as lines of text."""
    names = ", ".join(f"{word.word} {100 * word.share:.0f} %" for word in one.suggestions[:4])
    copies = f" (copies: {one.size - one.distinct})" if one.distinct < one.size else ""
    notes = "  [growing fast]" if one.growing else ""
    notes += f"  [known images that were rejected? nearest: {one.nearest}]" if one.looks_known else ""
    return [
        f"{one.number:>4}  {one.size} images{copies}  {names or '(no words)'}{notes}",
        f"      seen {one.first:,} to {one.last:,} · tightness {one.tightness:.2f} · {', '.join(one.exemplars[:3])}",
    ]


def review(
    state: options.SavedState,
    corrections: Annotated[
        Path | None, typer.Option(help="CSV with key and name, as the page of `unseen group` gives; no name: unknown.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--output", "-o", help="File or folder to write.")] = None,
    form: Annotated[
        str, typer.Option("--format", help=f"What to write: {', '.join(FORMATS)}; folder makes one per label.")
    ] = "csv",
    as_json: options.AsJson = False,
) -> None:
    """Record corrections of verdicts; export the kept images with labels (correction, or else verdict).

    Example: `unseen review --state state.safetensors --corrections corrections.csv -o labelled/ --format folder`

    Corrections teach the threshold, and `unseen undo` takes them back; they are kept apart from verdicts. A folder per
    label serves as `--examples` or `--calibrate`.
    """
    check_choice("a format", form, FORMATS)
    from unseen.cli import spaces
    from unseen.cli.regions import kept_boxes
    from unseen.discover import edits, review

    before = spaces.open_session(state)
    if corrections:
        said = _read_corrections(corrections)
        edits.apply(state, lambda session: review.correct(session, said))
    session = spaces.open_session(state)
    rows, words = review.reviewed(session), session.reservoir.corrections
    found = {"images": len(rows), "corrected": len(words), "threshold": session.threshold, "state": str(state)}
    if corrections:
        found |= {"threshold_before": before.threshold}
    if file:
        found |= {"output": str(file), "written": _export(rows, file, form, kept_boxes(state))}
    if as_json:
        output.emit(found)
        return
    moved = f"{before.threshold:z.2f} → " if corrections else ""
    print(f"images {len(rows):,} · corrected {len(words):,} · threshold {moved}{session.threshold:z.2f}", end="")
    print(f" · written {found['written']:,} to {file}" if file else "")


def _read_corrections(path: Path) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise DataError(f"expected a CSV at {path}, got {error.strerror}; check the path") from error
    if rows and not {"key", "name"} <= set(rows[0]):
        raise DataError(f"expected columns key and name in {path}, got {', '.join(rows[0])}; add a header: key,name")
    return {of_text_cell(row["key"]): of_text_cell(row["name"] or "") for row in rows}


def _export(rows: Sequence[ReviewedImage], path: Path, form: str, boxes: Mapping[str, tuple[str, Region]]) -> int:
    """Write images, or the boxes of parts of photos, with labels; the number of those that were written."""
    from unseen.discover import review
    from unseen.storage.files import replacing

    if form == "folder":
        return _copy_by_label(rows, path, boxes)
    if boxes and form in ("label-studio", "cvat"):
        raise DataError(f"expected whole photos for {form}, got parts of photos; write coco, which it imports")
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        if form == "csv":
            table = csv.writer(file)
            table.writerow((*review.ReviewedImage._fields, "label", *(("photo", "box") if boxes else ())))
            places = {key: (photo, " ".join(f"{x:g}" for x in region.box)) for key, (photo, region) in boxes.items()}
            table.writerows(map(as_text_cell, (*row, row.label, *places.get(row.key, ()))) for row in rows)
        elif form == "cvat":
            file.write(review.cvat(rows))
        else:
            makers = {"fiftyone": review.fiftyone, "label-studio": review.label_studio}
            made = review.coco(rows, boxes) if form == "coco" else makers[form](rows)
            json.dump(made, file, ensure_ascii=False)
    return len(rows)


def _copy_by_label(rows: Sequence[ReviewedImage], folder: Path, boxes: Mapping[str, tuple[str, Region]]) -> int:
    """Copy files, and parts of photos cut out, into a folder per label; keys that are neither are left out."""
    from unseen.images import Image, regions

    cut = {one.path: one for one in regions.entries_of({row.key: boxes[row.key] for row in rows if row.key in boxes})}
    written = 0
    for place, row in enumerate(rows):
        source, target = Path(row.key), folder / sort.folder_name(row.label) / f"{place:06d}-{Path(row.key).name}"
        part = cut[row.key].read() if row.key in cut else None
        if source.is_file() or isinstance(part, Image):
            target.parent.mkdir(parents=True, exist_ok=True)
            written += 1
        if isinstance(part, Image):
            part.pixels.save(target.with_name(f"{target.name}.png"))
        elif source.is_file():
            shutil.copyfile(source, target)
    if rows and not written:
        raise DataError("expected keys that are files, got none; run it in the folder from which the photos were read")
    return written
