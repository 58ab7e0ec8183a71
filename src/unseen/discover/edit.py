"""Edits of a session: a group becomes a name or is hidden, a name goes or is called otherwise, and one undo for all.

What was learned goes on. Every function returns another session and a record of what was done; the one it was given
stays as it is, so that a caller keeps it to undo the edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from unseen import detectors
from unseen.errors import LabelError, StateError
from unseen.labels import LabelSpace
from unseen.labels.edits import check_new_name, renamed, with_name, without_name
from unseen.labels.nearest import names_like
from unseen.session import Session

RELABELS = ("promote", "rename", "retire")  # edits that change the label space
NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class EditNumbers:
    """How a promoted name moves from its text to its images."""

    sample: int = 256  # kept images from which means are corrected
    taken: float = 0.02  # share of other images that may come to be nearest to a new name by moving it
    steps: int = 41  # places that are tried on the way from a text to its images


NUMBERS = EditNumbers()


class Edited(NamedTuple):
    """A session after an edit, and the record of it."""

    session: Session
    record: dict[str, Any]


def promote(session: Session, which: int | str, name: str, text: Float[Tensor, " d"]) -> Edited:
    """Make a known name of a group, or of one kept image; its images are judged again.

    `text` is the text vector of the name, of the encoder and the prompt of the label space.

    >>> from unseen import Session, demo, discover
    >>> session, names = Session(demo.load().space), demo.load().space
    >>> _ = session.observe(demo.load().z[-60:])
    >>> found = discover.group(session)
    >>> text = torch.nn.functional.normalize(names.ood_anchors[:2].sum(0), dim=0)  # or encoder.texts([...])[0]
    >>> promote(found.session, found.groups[0].number, "new", text).session.detector.labels.names[-1]
    'new'
    """
    reservoir = session.reservoir.with_recent()
    session = session.at(reservoir=reservoir)
    member = members(session, which)
    images, labels = reservoir.kept.select(member), session.detector.labels
    name = check_new_name(labels.names, name)
    check_text_vector(text, labels.dim)
    anchor = anchor_near_images(session, member, text)
    moved = move_to_space(session, with_name(labels, name, anchor, images.features))
    judged = rejudge_images(moved.session, member)
    now = judged.reservoir.kept
    left = replace(now, group=now.group.masked_fill(member, 0))  # those left of a promoted group get a new number
    judged = judged.at(reservoir=judged.reservoir.with_images(left))
    record = {
        "verb": "promote",
        "name": name,
        "group": which,
        "images": len(images),
        "now_known": int(now.known[member].sum()),
        "similar_names": list(names_like(labels, name, text)),
        "now_named": int((now.known & (now.label == len(labels.names)))[member].sum()),
        **moved.record,
    }
    return record_edit(judged, record)


def retire(session: Session, name: str) -> Edited:
    """Move a known name to the negatives: images of it are unknown from now on.

    >>> from unseen import Session, demo
    >>> retire(Session(demo.load().space), "cat").session.detector.labels.negatives[-1]
    'cat'
    """
    labels = without_name(session.detector.labels, name)
    moved = move_to_space(_without_photos_of(session, name), labels)
    return record_edit(moved.session, {"verb": "retire", "name": name, **moved.record})


def _without_photos_of(session: Session, name: str) -> Session:
    """A session without the calibration photos that look most like a name: it is known no longer."""
    told, labels = session.told_apart, session.detector.labels
    if not len(told.z):
        return session
    label = session.detector.score(session.snapshot.detector, told.z.to(labels.id_anchors)).cpu().label
    return session.at(told=told.select(~told.is_photo | (label != labels.names.index(name))))


def rename(session: Session, old: str, new: str) -> Edited:
    """Call a known name otherwise; its vector and what was learned of it stay.

    >>> from unseen import Session, demo
    >>> rename(Session(demo.load().space), "cat", "house cat").session.detector.labels.names[1]
    'house cat'
    """
    labels = renamed(session.detector.labels, old, new)
    moved = move_to_space(session, labels, new_names={old: new.strip()})
    return record_edit(moved.session, {"verb": "rename", "name": old, "new": new.strip(), **moved.record})


def dismiss(session: Session, number: int) -> Edited:
    """Show a group never again; its images stay unknown.

    >>> from unseen import Session, demo, discover
    >>> session = Session(demo.load().space)
    >>> _ = session.observe(demo.load().z[-60:])
    >>> found = discover.group(session)
    >>> dismiss(found.session, found.groups[0].number).session.reservoir.dismissed == (found.groups[0].number,)
    True
    """
    reservoir = session.reservoir.with_recent()
    if number in reservoir.dismissed:
        raise StateError(f"expected a group that is shown, got {number}, which was dismissed before; nothing to do")
    session = session.at(reservoir=reservoir)
    count = int(members(session, number).sum())
    hidden = replace(reservoir, dismissed=(*reservoir.dismissed, number))
    return record_edit(session.at(reservoir=hidden), {"verb": "dismiss", "group": number, "images": count})


def last_edit(session: Session) -> Mapping[str, Any]:
    """The record of the last edit that has not been undone."""
    undone = {one.get("undone") for one in session.reservoir.journal}
    open_edits = [one for one in session.reservoir.journal if one["verb"] != "undo" and one["edit"] not in undone]
    if not open_edits:
        raise StateError("expected an edit to undo, got none; promote, rename, retire, dismiss and correct are edits")
    return open_edits[-1]


def undo(session: Session, before: Session | None) -> Edited:
    """Take back the last edit; `before` is the session as it was before it, where it changed the label space."""
    last = last_edit(session)
    is_exact, back = True, session
    if last["verb"] in RELABELS:
        if before is None:
            raise StateError(f"expected an edit whose state is kept, got edit {last['edit']}; only the latest are")
        is_exact = int(session.snapshot.tally.seen) == last["seen"] and session.rule == before.rule
        names = {last["new"]: last["name"]} if last["verb"] == "rename" else NO_NAMES
        back = before if is_exact else move_to_space(session, before.detector.labels, new_names=names).session
    now, kept = session.reservoir, back.reservoir.with_recent()
    shown = (last["group"],) if last["verb"] == "dismiss" else ()
    dismissed = tuple(number for number in now.dismissed if number not in shown)
    next_group = max(now.next_group, kept.next_group)
    reservoir = replace(kept, journal=now.journal, dismissed=dismissed, next_group=next_group)
    record = {"verb": "undo", "undone": last["edit"], "of": last["verb"], "exact": is_exact}
    done = record_edit(back.at(reservoir=reservoir), record)
    done.session.look_at_told()  # without the corrections that are taken back
    return done


def members(session: Session, which: int | str) -> Bool[Tensor, " n"]:
    """Which kept images belong to a group, or are called by a key; refuse none, and say what there is."""
    images, is_number = session.reservoir.images, str(which).isdecimal()
    numbers = sorted(set(images.group[~images.known].tolist()) - {0})
    if is_number and int(which) in numbers:
        return (images.group == int(which)) & ~images.known
    found = torch.tensor([key == which for key in images.names()], dtype=torch.bool)
    if bool(found.any()):
        return found
    listed = ", ".join(map(str, numbers[:12])) + (" ..." if len(numbers) > 12 else "")
    there = f"there are {listed}" if numbers else "there are no groups yet: unseen group"
    if not is_number:
        raise StateError(f"expected a group's number or an image's key, got {which!r}; {there}")
    for one in reversed(session.reservoir.journal):
        if one["verb"] == "promote" and str(one["group"]) == str(which):
            there = f"it was promoted to {one['name']!r} before"
    raise StateError(f"expected the number of a group, got {which}; {there}")


def check_text_vector(text: Tensor, dim: int) -> None:
    """Refuse what is no direction of the width of a label space."""
    if text.shape != (dim,) or not bool(text.isfinite().all()) or not bool(text.any()):
        raise LabelError(
            f"expected the text vector of one name, of shape [{dim}], finite and not zero, got shape "
            f"{list(text.shape)}; pass encoder.texts([prompt])[0] of the encoder of the label space"
        )


def anchor_near_images(
    session: Session, member: Bool[Tensor, " n"], text: Float[Tensor, " d"], *, taken: float = NUMBERS.taken
) -> Float[Tensor, " d"]:
    """The text vector, moved towards its images until it is as near to them as known names are to theirs.

    It stops before it would be the nearest word of more than this share of the other images. A text that is near enough
    stays where it is.
    """
    kept, labels = session.reservoir.images, session.detector.labels
    text, images = normalize(text.float().cpu(), dim=0), kept.features[member]
    if not bool(kept.known.any()):
        return text
    known = kept.select(kept.known)
    wanted = float((known.features * labels.id_anchors.float().cpu()[known.label]).sum(1).mean())
    towards = normalize(images.mean(0) - kept.mean, dim=0)
    others = kept.features[~member]
    others = others[:: max(1, len(others) // NUMBERS.sample)]
    best = (others @ torch.cat([labels.id_anchors, labels.ood_anchors]).float().cpu().T).amax(1)
    anchor = text
    for step in torch.linspace(0, 1, NUMBERS.steps).tolist():
        moved = normalize(text + step * towards, dim=0)
        if step and float((others @ moved > best).float().mean()) > taken:
            break
        anchor = moved
        if float((images @ moved).mean()) >= wanted:
            break
    return anchor


def move_to_space(session: Session, labels: LabelSpace, *, new_names: Mapping[str, str] = NO_NAMES) -> Edited:
    """A session that goes on over another label space, and what changed; `new_names` has the new by the old.

    A detector that cannot carry its state starts anew from the kept images, in their order.
    """
    old = session.detector
    detector = detectors.make(old.name, labels, **old.settings)
    renamed_labels, images = _with_new_names(old.labels, new_names), session.reservoir.images
    places = {name: place for place, name in enumerate(labels.names)}
    label = torch.tensor([places.get(name, -1) for name in renamed_labels.names], dtype=torch.int64)[images.label]
    images = replace(images, label=label.clamp(min=0))
    kept = set(labels.negatives)
    record = {
        "carried": detector.transfers,
        "before": old.labels.fingerprint,
        "after": labels.fingerprint,
        "negatives_removed": [word for word in old.labels.negatives if word not in kept],
    }
    sample = images.features.to(labels.id_anchors)
    if detector.transfers:
        before = detectors.make(old.name, renamed_labels, **old.settings)
        few = sample[:: max(1, len(sample) // NUMBERS.sample)]
        by = old.baseline - detector.baseline
        snapshot = session.snapshot._replace(
            detector=detector.transferred(session.snapshot.detector, before, few),
            threshold=session.rule.moved(session.snapshot.threshold, by),
        )
    else:
        fresh = Session(detector, session.rule, keep=0)
        fresh.observe(sample)
        snapshot = fresh.snapshot._replace(tally=session.snapshot.tally)
    moved = session.at(snapshot, detector=detector, reservoir=session.reservoir.with_images(images))
    moved.look_at_told()
    return Edited(rejudge_images(moved, label < 0), record)


def _with_new_names(labels: LabelSpace, new_names: Mapping[str, str]) -> LabelSpace:
    """A label space by its new names; a negative that is spelled like one of them gets out of the way."""
    if not new_names:
        return labels
    names = tuple(new_names.get(name, name) for name in labels.names)
    taken = set(new_names.values())
    negatives = tuple(f"{word} (negative)" if word in taken else word for word in labels.negatives)
    return replace(labels, names=names, negatives=negatives)


def rejudge_images(session: Session, rows: Bool[Tensor, " n"]) -> Session:
    """The session with new verdicts on some of its kept images; nothing is learned."""
    images = session.reservoir.images
    if not bool(rows.any()):
        return session
    verdicts = session.score(images.features[rows].to(session.detector.labels.id_anchors))
    columns = {name: getattr(images, name).clone() for name in ("margin", "label", "known", "group")}
    columns["margin"][rows] = verdicts.margin.float()
    columns["label"][rows] = verdicts.label
    columns["known"][rows] = ~verdicts.unknown
    columns["group"][rows & columns["known"]] = 0
    return session.at(reservoir=session.reservoir.with_images(replace(images, **columns)))


def record_edit(session: Session, record: dict[str, Any]) -> Edited:
    """The session with the record of an edit, numbered, in its journal."""
    journal: Sequence[Any] = session.reservoir.journal
    full = {"edit": 1 + max((one["edit"] for one in journal), default=0), "seen": int(session.snapshot.tally.seen)}
    longer = replace(session.reservoir, journal=(*journal, full | record))
    return Edited(session.at(reservoir=longer), full | record)
