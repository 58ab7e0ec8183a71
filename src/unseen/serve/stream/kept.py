"""What people see and say of the samples that a stream has kept: groups, explanations, edits of its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from unseen import LabelSpace, checkpoint, demo
from unseen.discover import Edited, Vocabulary, explain, group, undo
from unseen.discover.edit import RELABELS, last_edit
from unseen.discover.groups import with_numbers
from unseen.discover.review import ReviewedImage, correct, reviewed
from unseen.errors import LabelError, ServiceError, StateError
from unseen.reservoir import Reservoir
from unseen.serve.settings import Limits
from unseen.serve.stream.disk import check_names
from unseen.serve.stream.journal import Position
from unseen.session import Session

if TYPE_CHECKING:
    from unseen.serve.stream.stream import Stream

Change = Callable[[Session], Edited]


class KeptSamples(NamedTuple):
    """A session and the number of its first sample: places begin anew after a reset, sequence numbers do not."""

    session: Session
    first: int

    @classmethod
    def of(cls, session: Session, at: Position) -> KeptSamples:
        """The kept samples of a session at a point of its stream."""
        return cls(session, at.seq - int(session.snapshot.tally.seen))

    def seq(self, key: str) -> int:
        """The sequence number of a kept sample."""
        return int(key.removeprefix("#")) - 1 + self.first

    def key(self, seq: int) -> str:
        """What the session calls a sample; refuse one that is not kept."""
        if seq - self.first not in self.session.reservoir.images.place.tolist():  # a caller's number may be any
            what = f"expected a sample that the stream has kept, got {seq}; the latest unknown ones are"
            raise ServiceError(404, what)
        return f"#{seq - self.first + 1}"


class GroupNumbers(NamedTuple):
    """The group of each kept sample that has one, by its place since the last reset, and the next free number."""

    next_group: int
    of_place: dict[int, int]

    @classmethod
    def of(cls, reservoir: Reservoir) -> GroupNumbers:
        """The numbers that the images of a reservoir have."""
        images = reservoir.images
        pairs = zip(images.place.tolist(), images.group.tolist(), strict=True)
        return cls(reservoir.next_group, {place: number for place, number in pairs if number})

    def given_to(self, session: Session) -> Session | None:
        """The session with its kept samples so numbered, None where they are already."""
        before = session.reservoir
        after = with_numbers(before, self.of_place, self.next_group)
        if before.next_group == after.next_group and torch.equal(before.images.group, after.images.group):
            return None
        return session.at(reservoir=after)

    def to_bytes(self) -> bytes:
        """The numbers as bytes."""
        return np.array([self.next_group, *self.of_place, *self.of_place.values()], "<i8").tobytes()

    @classmethod
    def of_bytes(cls, data: bytes) -> GroupNumbers:
        """The numbers that `to_bytes` wrote."""
        next_group, *rest = np.frombuffer(data, "<i8").tolist()
        half = len(rest) // 2
        return cls(next_group, dict(zip(rest[:half], rest[half:], strict=True)))


def vocabulary(labels: LabelSpace) -> Vocabulary | None:
    """The words that groups may be called by: those of the demo for its own, None for the negatives."""
    return demo.vocabulary() if labels.encoder == demo.load().space.encoder else None


def stream_groups(stream: Stream) -> dict[str, Any]:
    """The groups of the kept unknown samples, largest first; the stream keeps their numbers, unless it was edited or
    began anew, with another history, meanwhile."""
    with stream.grouping:
        history, samples = stream.history, KeptSamples.of(*stream.published())
        found = group(samples.session, vocabulary(samples.session.detector.labels))
        with stream.changing():
            if stream.history is history and edit_count(stream.writer) == edit_count(found.session):
                stream.number_groups(GroupNumbers.of(found.session.reservoir))
    rows = [one.row() for one in found.groups]
    for row in rows:
        row |= {name: row[name] - 1 + samples.first for name in ("first", "last")}
        row |= {name: [samples.seq(key) for key in row[name]] for name in ("exemplars", "keys")}
    return {"edit": edit_count(samples.session), "groups": rows}


def explain_sample(stream: Stream, seq: int) -> dict[str, Any]:
    """Why a kept sample gets its verdict from the stream as it is now."""
    samples = KeptSamples.of(*stream.published())
    key, images = samples.key(seq), samples.session.reservoir.images
    z = images.features[images.names().index(key)].to(stream.labels.id_anchors)
    row = explain(samples.session, z, key=key).row() | {"key": None}
    for one in row["similar"]:
        one["seq"] = samples.seq(one.pop("key"))
    return row | {"seq": seq}


def reviewed_samples(stream: Stream) -> list[tuple[int, ReviewedImage]]:
    """The kept samples by number, each with its verdict and the word of a person."""
    samples = KeptSamples.of(*stream.published())
    return [(samples.seq(row.key), row) for row in reviewed(samples.session)]


def corrected(stream: Stream, names: Mapping[int, str], session: Session) -> Edited:
    """The session with what a person says that kept samples show, by sequence number."""
    samples = KeptSamples.of(session, stream.at)
    return correct(session, {samples.key(seq): name for seq, name in names.items()})


def undone(stream: Stream, session: Session) -> Edited:
    """The session without its last edit: as it was before, where that state is kept."""
    path = stream.snapshots.slot("before", int(last_edit(session).get("entry", 0))).path
    return undo(session, stream.resumed(checkpoint.load(path)) if path.exists() else None)


def edit_stream(stream: Stream, change: Change, limits: Limits, *, after: int | None = None) -> dict[str, Any]:
    """Change the session of a stream, its label space perhaps, and return the record of it.

    Everything is on disk before readers see it. With `after`, the number of the last edit that the caller knows of, an
    edit that came in between is refused. What the stream as it is does not allow is a conflict, 409.
    """
    with stream.changing():
        try:
            refuse_other_edit(stream.writer, after)
            done = change(stream.writer)
        except (StateError, LabelError) as error:
            raise ServiceError(409, str(error), "edit") from error
        check_names(done.session.detector.labels, limits)
        record = {**done.record, "entry": stream.at.entry + 1, "seq": stream.at.seq}
        if record["verb"] in RELABELS:
            before = stream.snapshots.slot("before", stream.at.entry + 1).path
            stream.writer.save(before, with_space=False, position=list(stream.at))
        kept = done.session.reservoir
        kept = replace(kept, journal=(*kept.journal[:-1], record))
        stream.take_over("edit", done.session.at(reservoir=kept))
        stream.snapshots.tidy()
    stream.cover_restores()
    return record


def edit_count(session: Session) -> int:
    """The number of the last edit, 0 before the first."""
    return int(max((one["edit"] for one in session.reservoir.journal), default=0))


def refuse_other_edit(session: Session, after: int | None) -> None:
    """Refuse an edit whose caller does not know of the last one."""
    now = edit_count(session)
    if after is not None and after != now:
        last = session.reservoir.journal[-1] if session.reservoir.journal else {"verb": "reset"}
        what = f"{now} ({last['verb']} {last.get('name', last.get('group', ''))})".replace(" )", ")")
        raise StateError(f"expected the stream as it was after edit {after}, got edit {what}; look at the groups again")
