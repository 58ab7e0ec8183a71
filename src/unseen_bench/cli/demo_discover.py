"""unseen demo --discover: from unknown to known on the embedded images."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen import Session
from unseen import demo as embedded
from unseen.cli import output
from unseen.cli.discover import group_lines
from unseen.cli.edit import print_edit
from unseen.discover import Group, Grouping, explain, group, promote
from unseen.report import group_page


@dataclass(frozen=True)
class DiscoverNumbers:
    """Which groups of the demo become names."""

    first: int = 1000  # images before the groups are made; the others come afterwards
    large: int = 30  # images of a group that the demo promotes
    weak: float = 0.25  # share under which a suggestion is not taken


NUMBERS = DiscoverNumbers()

WRITTEN = ("digit",)  # what somebody who looks at the pictures writes where suggestions are weak


def run(pack: embedded.Pack, session: Session, report: Path, *, as_json: bool) -> None:
    """Observe, explain, group, promote by the best suggestions, observe the rest; print which images got them."""
    z, keys = pack.z, pack.keys
    session.observe(z[: NUMBERS.first], keys[: NUMBERS.first])
    found = group(session, embedded.vocabulary())
    thumbnails = dict(zip(keys, pack.thumbnails, strict=True))
    group_page.write(report, found, title="unseen demo: what is unknown", thumbnails=thumbnails)
    if not as_json:
        _print_groups(found)
    after, names = _promote_large_groups(found, as_json=as_json)
    rows = _new_name_rows(pack, found.session, after, names)
    if as_json:
        groups = [one.row() for one in found.groups]
        output.emit({"groups": groups, "promoted": names, "after": rows, "report": str(report)})
        return
    rest = len(z) - NUMBERS.first
    print(f"\nthe other {rest} images, called by the new names; what they are (the truth is used only here):")
    for row in rows:
        shown = ", ".join(f"{kind} {count}" for kind, count in row["shown"].items())
        print(f"  {row['name']:<24}{row['images']:>4} images: {shown}")
    print(f"\nreport with the pictures: {report}")


def _print_groups(found: Grouping) -> None:
    images = found.session.reservoir.images
    row = int((~images.known).nonzero()[0])
    print("why is an image unknown?\n")
    print("\n".join(explain(found.session, images.features[row], key=images.keys[row]).lines()))
    print(f"\nwhat are the {found.unknown} unknown images among the first {NUMBERS.first:,}?\n")
    for one in found.groups[:8]:
        print("\n".join(group_lines(one)))
    print(
        f"\n{len(found.groups)} groups hold {found.grouped} of them; the large ones become names: the best suggestion,"
    )
    print(f"or, under {100 * NUMBERS.weak:.0f} %, what somebody who sees the pictures writes: {', '.join(WRITTEN)}\n")


def _promote_large_groups(found: Grouping, *, as_json: bool) -> tuple[Session, dict[str, int]]:
    """The session after the large groups have become names, and the number of the group of each name."""
    session, words, written = found.session, embedded.vocabulary(), iter(WRITTEN)
    names: dict[str, int] = {}
    for one in found.groups:
        word = _best_word(one, session) or next(written, None)
        if one.size < NUMBERS.large or one.looks_known or word is None:
            continue
        done = promote(session, one.number, word, words.vectors[words.words.index(word)])
        session, names[word] = done.session, one.number
        if not as_json:
            print_edit(done.record, as_json=False)
    return session, names


def _best_word(one: Group, session: Session) -> str | None:
    """The best suggestion, None where its share is too small: a person has to look at the pictures."""
    taken = session.detector.labels.names
    return next((word.word for word in one.suggestions if word.word not in taken and word.share >= NUMBERS.weak), None)


def _new_name_rows(pack: embedded.Pack, before: Session, after: Session, names: dict[str, int]) -> list[dict[str, Any]]:
    """For each new name which of the later images got it, by what they show; old names in one row."""
    z, keys = pack.z[NUMBERS.first :], pack.keys[NUMBERS.first :]
    kinds = [key.rsplit("/", 1)[0] for key in keys]
    verdicts = after.observe(z, keys)
    rows = []
    for name in names:
        shown = Counter(kind for kind, verdict in zip(kinds, verdicts, strict=True) if verdict.name == name)
        rows.append({"name": name, "images": shown.total(), "shown": dict(shown.most_common(5))})
    was = before.at(before.snapshot).observe(z, keys)
    old = [kind in pack.space.names for kind in kinds]
    right = [
        sum(is_old and one.name == kind for one, kind, is_old in zip(some, kinds, old, strict=True))
        for some in (was, verdicts)
    ]
    return [*rows, {"name": "the animals", "images": sum(old), "shown": {"right before": right[0], "after": right[1]}}]
