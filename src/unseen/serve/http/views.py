"""What a service shows of its streams: for a list, for a page, for listeners."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from unseen.serve.http.errors import error_content
from unseen.serve.http.events import VerdictEvent
from unseen.serve.stream.batch import dump_json
from unseen.serve.stream.disk import session_bytes
from unseen.serve.stream.store import StreamEntry
from unseen.serve.work.jobs import Job
from unseen.verdicts import finite


def stream_summary(entry: StreamEntry) -> dict[str, Any]:
    """What a list shows of a stream."""
    config = entry.config
    shown = {"id": config.id, "name": config.name, "owner": config.owner, "detector": config.detector}
    shown |= {"created": config.created, "status": entry.status, "reason": entry.reason}
    return {**shown, "seq": entry.stream.at.seq if entry.stream else None}


def stream_info(entry: StreamEntry, *, recent: bool = False) -> dict[str, Any]:
    """Everything about a stream that is open, the summary of another."""
    if entry.stream is None:
        return stream_summary(entry)
    stream, labels, session = entry.stream, entry.stream.labels, entry.stream.readers
    counts = {name: int(value) for name, value in session.snapshot.tally._asdict().items()}
    files = [(saved, saved.path.stat()) for saved in stream.snapshots.all() if saved.path.exists()]
    return {
        **stream_summary(entry),
        "settings": session.detector.settings,
        "threshold": {
            "kind": session.rule.name,
            "settings": session.rule.settings,
            "value": finite(session.threshold),
            "warming": session.is_warming,
            "recall_interval": session.recall_interval,
        },
        "labels": {
            "names": len(labels.names),
            "negatives": len(labels.negatives),
            "dim": labels.dim,
            "encoder": labels.encoder,
            "fingerprint": labels.fingerprint,
        },
        "counts": counts | {"unknown": counts["seen"] - counts["known"]},
        "drift": stream.history.drift,
        "alarm": stream.history.watch.shown(),
        "journal_bytes": stream.journal.size(),
        "memory_bytes": session_bytes(session),
        "replayed": stream.replayed,
        "faults": stream.faults[-10:],
        "snapshots": [
            {"snapshot": saved.entry, "kind": saved.kind, "bytes": stat.st_size, "time": int(stat.st_mtime)}
            for saved, stat in files
        ],
        **({"recent": recent_info(entry)} if recent else {}),
    }


def recent_info(entry: StreamEntry) -> dict[str, Any]:
    """Recent margins and the latest verdicts, with which of them have a thumbnail."""
    stream = entry.opened
    latest = recent_records(entry, stream.at.seq - 61)  # as many as a page shows
    shown = [row | {"pictured": row["seq"] in entry.thumbnails} for row in latest]
    return {"margins": stream.history.margins(), "latest": shown}


def recent_records(entry: StreamEntry, after: int) -> list[dict[str, Any]]:
    """Verdicts that are kept of samples after a number, with what their callers called the samples."""
    rows: list[dict[str, Any]] = []
    for part in entry.opened.history.recent(after):
        rows += part.rows([entry.keys.get(seq) for seq in range(part.first, part.after)])
    return rows


def kept_events(entry: StreamEntry, after: int) -> list[VerdictEvent]:
    """The verdicts of the samples after one, as far as they are kept, in events of a bounded size."""
    rows, events = recent_records(entry, after), []
    for start in range(0, len(rows), 256):
        part = rows[start : start + 256]
        pictured = {"pictured": True} if any(row["seq"] in entry.thumbnails for row in part) else {}
        text = dump_json({"verdicts": part, "repeated": False, **pictured})
        events.append(VerdictEvent(part[0]["seq"], part[-1]["seq"], text))
    return events


def job_info(job: Job) -> dict[str, Any]:
    """How far a job is, and what it made or why it failed."""
    started = datetime.fromtimestamp(job.started, UTC).isoformat(timespec="seconds")
    shown = {"job": job.id, "status": job.status, "stage": job.stage, "done": job.done, "total": job.total}
    error = error_content(job.error)[1] if job.error else None
    return {**shown, "started": started, "stream": job.result, "error": error}
