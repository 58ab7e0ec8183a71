"""What the kept samples of a stream are: groups, explanations and what people say of them, by sequence number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from unseen import LabelSpace
from unseen.discover import Edited, Vocabulary, explain, group
from unseen.discover.review import ReviewedImage, correct, reviewed
from unseen.errors import ServiceError, StateError
from unseen.serve.stream.editing import edit_count
from unseen.serve.stream.group_numbers import GroupNumbers
from unseen.serve.stream.history import History
from unseen.serve.stream.journal import GROUP, JournalEntry
from unseen.serve.stream.stream import Stream
from unseen.session import Session


class KeptSamples(NamedTuple):
    """A session and the number of its first sample: places begin anew after a reset, sequence numbers do not."""

    session: Session
    first: int

    @classmethod
    def of(cls, stream: Stream) -> KeptSamples:
        """What readers of a stream see."""
        session, at = stream._published()
        return cls(session, at.seq - int(session.snapshot.tally.seen))

    @classmethod
    def within(cls, stream: Stream, session: Session) -> KeptSamples:
        """What an edit sees, while the stream is locked."""
        return cls(session, stream.at.seq - int(session.snapshot.tally.seen))

    def seq(self, key: str) -> int:
        """The sequence number of a kept sample."""
        return int(key.removeprefix("#")) - 1 + self.first

    def key(self, seq: int) -> str:
        """What the session calls a sample; refuse one that is not kept."""
        if seq - self.first not in self.session.reservoir.images.place.tolist():  # a caller's number may be any
            raise ServiceError(
                404, f"expected a sample that the stream has kept, got {seq}; the latest unknown ones are"
            )
        return f"#{seq - self.first + 1}"


class Words(Protocol):
    """Where groups get their names from."""

    def of(self, labels: LabelSpace) -> Vocabulary | None:
        """The words for a label space, None for its negatives."""


def stream_groups(stream: Stream, words: Words) -> dict[str, Any]:
    """The groups of the kept unknown samples, largest first; the stream keeps their numbers."""
    with stream.grouping:
        history, samples = stream.history, KeptSamples.of(stream)
        found = group(samples.session, words.of(samples.session.detector.labels))
        history.growing = [one.number for one in found.groups if one.growing]
        number_groups(stream, found.session, history)
    rows = [one.row() for one in found.groups]
    for row in rows:
        row |= {name: row[name] - 1 + samples.first for name in ("first", "last")}
        row |= {name: [samples.seq(key) for key in row[name]] for name in ("exemplars", "keys")}
    return {"edit": edit_count(samples.session), "groups": rows}


def number_groups(stream: Stream, grouped: Session, history: History) -> None:
    """Keep the numbers that groups were given, unless the stream was edited or began anew, with another history."""
    numbers = GroupNumbers.of(grouped.reservoir)
    with stream._lock:
        stream._refresh()
        is_same = stream.history is history and edit_count(stream.writer) == edit_count(grouped)
        numbered = numbers.given_to(stream.writer) if is_same else None
        if numbered is not None:
            stream._append(JournalEntry(GROUP, 0, numbers.to_bytes()))
            stream.writer = numbered
            stream._publish()


def explain_sample(stream: Stream, seq: int) -> dict[str, Any]:
    """Why a kept sample gets its verdict from the stream as it is now."""
    samples = KeptSamples.of(stream)
    key, images = samples.key(seq), samples.session.reservoir.images
    z = images.features[images.names().index(key)].to(stream.labels.id_anchors)
    row = explain(samples.session, z, key=key).row() | {"key": None}
    for one in row["similar"]:
        one["seq"] = samples.seq(one.pop("key"))
    return row | {"seq": seq}


def reviewed_samples(stream: Stream) -> list[tuple[int, ReviewedImage]]:
    """The kept samples by number, each with its verdict and the word of a person."""
    samples = KeptSamples.of(stream)
    return [(samples.seq(row.key), row) for row in reviewed(samples.session)]


def corrected(stream: Stream, names: Mapping[int, str], session: Session) -> Edited:
    """The session with what a person says that kept samples show, by sequence number."""
    samples = KeptSamples.within(stream, session)
    try:
        return correct(session, {samples.key(seq): name for seq, name in names.items()})
    except ServiceError as error:
        raise StateError(str(error)) from error
