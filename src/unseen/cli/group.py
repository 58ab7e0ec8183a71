"""unseen group: what are the unknown images? Groups with exemplars and suggested names."""

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen import LabelSpace
from unseen.cli import options, saved_state, terminal, vocabulary
from unseen.discover import Group, Grouping
from unseen.discover import group as grouped
from unseen.discover.groups import SMALLEST, group_features
from unseen.errors import SettingError
from unseen.features import load_features
from unseen.images import find_images
from unseen.images.decode import jpeg_thumbnail
from unseen.images.sources import read_entries
from unseen.report import group_page
from unseen.report.stream_page import SIDE
from unseen.storage.locks import locked

SHOWN = 20


def group(
    features: Annotated[str | None, typer.Argument(help="Features to group, all of them, instead of a state.")] = None,
    state: Annotated[Path | None, typer.Option(help="State file: its unknown images are grouped.")] = None,
    space: saved_state.Space = None,
    words: vocabulary.Words = vocabulary.WORDNET,
    encoder: vocabulary.EncoderName = None,
    smallest: Annotated[int, typer.Option(min=2, help="Distinct images of the smallest group.")] = SMALLEST,
    dismissed: Annotated[bool, typer.Option("--dismissed", help="Show groups that were dismissed, too.")] = False,
    report: Annotated[Path | None, typer.Option(help="HTML file to write, to look at and to correct.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Group the unknown images of a state; print exemplars and suggested names of each group.

    Example: `unseen group --state state.safetensors`, then `unseen promote 3 "sea urchin" --state state.safetensors`

    Groups keep their numbers as the stream goes on. `unseen group FEATURES --space SPACE` groups a features folder.
    """
    if (state is None) == (features is None):
        raise SettingError("expected --state or a features folder, got both or neither; pass one of them")
    found = _of_state(state, space, words, encoder, smallest, dismissed) if state else None
    if features is not None:
        found = _of_features(features, space, words, encoder, smallest)
    assert found is not None
    if report:
        title, where = f"unseen group: {state or features}", str(state) if state else None
        group_page.write(report, found, title=title, thumbnails=_thumbnails(found), state=where)
    if as_json:
        for one in found.groups:
            terminal.emit(one.row())
        terminal.emit({"summary": _summary(found), "report": report and str(report)})
        return
    for one in found.groups[:SHOWN]:
        print("\n".join(group_lines(one)))
    print(summary_text(found, report))


def _thumbnails(found: Grouping) -> dict[str, bytes]:
    """Thumbnails of the exemplars that are files and can be read here."""
    keys = [key for one in found.groups for key in one.exemplars if Path(key).is_file()]
    if not keys:
        return {}
    batches = read_entries(find_images(keys), size=32)
    return {image.path: jpeg_thumbnail(image.pixels, 2 * SIDE, quality=72) for batch in batches for image in batch}


def _of_state(
    state: Path, space: Path | None, words: str, encoder: str | None, smallest: int, dismissed: bool
) -> Grouping:
    session = saved_state.open_session(state, space)
    names = vocabulary.load_vocabulary(words, session.detector.labels, encoder)
    with locked(state):  # the state may have gone on meanwhile
        session = saved_state.open_session(state, space)
        found = grouped(session, names, smallest=smallest, dismissed=dismissed)
        found.session.save(state)
    return found


def _of_features(features: str, space: Path | None, words: str, encoder: str | None, smallest: int) -> Grouping:
    if space is None:
        raise SettingError("expected --space with a features folder, got none; make one with: unseen mine")
    labels = LabelSpace.load(space)
    samples = load_features(features)
    names = vocabulary.load_vocabulary(words, labels, encoder)
    return group_features(samples.z, samples.keys, labels, names, smallest=smallest)


def group_lines(one: Group) -> list[str]:
    """A group as lines of text."""
    names = ", ".join(f"{word.word} {100 * word.share:.0f} %" for word in one.suggestions[:4])
    copies = f" (copies: {one.size - one.distinct})" if one.distinct < one.size else ""
    notes = [
        "growing fast" if one.growing else "",
        f"known images that were rejected? nearest: {one.nearest}" if one.looks_known else "",
    ]
    return [
        f"{one.number:>4}  {one.size} images{copies}  {names or '(no words)'}"
        + "".join(f"  [{note}]" for note in notes if note),
        f"      seen {one.first:,} to {one.last:,} · tightness {one.tightness:.2f} · {', '.join(one.exemplars[:3])}",
    ]


def summary_text(found: Grouping, report: Path | None) -> str:
    """The counts in one line."""
    more = f" · {len(found.groups) - SHOWN} more groups: --json" if len(found.groups) > SHOWN else ""
    page = f" · report in {report}" if report else ""
    growing = ", ".join(str(one.number) for one in found.groups if one.growing)
    more += f" · alarm: many new images in group {growing}" if growing else ""
    groups = "1 group holds" if len(found.groups) == 1 else f"{len(found.groups)} groups hold"
    return f"{groups} {found.grouped:,} of {found.unknown:,} unknown images kept{more}{page}"


def _summary(found: Grouping) -> dict[str, Any]:
    growing = [one.number for one in found.groups if one.growing]
    return {"groups": len(found.groups), "grouped": found.grouped, "unknown": found.unknown, "growing": growing}
