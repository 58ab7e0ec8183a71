"""What the unknown samples of a stream are: groups and explanations, by sequence number."""

from typing import Any

from unseen.discover import explain, group
from unseen.discover.groups import with_numbers
from unseen.errors import ServiceError
from unseen.serve.stream.stream import Stream


def stream_groups(stream: Stream) -> list[dict[str, Any]]:
    """Return the groups of the kept unknown samples, largest first; the stream keeps their numbers."""
    session, at = stream._published()
    found = group(session)
    with stream._lock:
        if stream._fresh:  # else what the writer has learned is not on disk
            stream.writer = stream.writer.at(
                stream.writer.snapshot, reservoir=with_numbers(stream.writer.reservoir, found.session.reservoir)
            )
            stream._publish()
    offset = at.seq - int(session.snapshot.tally.seen)  # places begin anew after a reset, sequence numbers do not
    rows = [one.row() for one in found.groups]
    for row in rows:
        row |= {name: row[name] - 1 + offset for name in ("first", "last")}
        row |= {name: [int(key.removeprefix("#")) - 1 + offset for key in row[name]] for name in ("exemplars", "keys")}
    return rows


def explain_sample(stream: Stream, seq: int) -> dict[str, Any]:
    """Return why a kept sample gets its verdict from the stream as it is now."""
    session, at = stream._published()
    offset, images = at.seq - int(session.snapshot.tally.seen), session.reservoir.images
    rows = (images.place == seq - offset).nonzero().flatten().tolist()
    if not rows:
        raise ServiceError(404, f"expected a sample that the stream has kept, got {seq}; the latest unknown ones are")
    row = explain(session, images.features[rows[0]].to(session.detector.labels.id_anchors)).row() | {"key": None}
    for one in row["similar"]:
        one["seq"] = int(one.pop("key").removeprefix("#")) - 1 + offset
    return row | {"seq": seq}
