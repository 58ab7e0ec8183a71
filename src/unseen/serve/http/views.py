"""What a service shows of its streams: for a list, for a page, for Prometheus."""

from datetime import UTC, datetime
from typing import Any

import torch
from starlette.responses import Response

from unseen import LabelSpace
from unseen.detectors.state import flatten
from unseen.labels.nearest import nearest_negatives
from unseen.serve.http.errors import error_content
from unseen.serve.http.events import VerdictEvent
from unseen.serve.stream.batch import dump_json
from unseen.serve.stream.disk import folder_bytes
from unseen.serve.stream.history import RecentVerdicts
from unseen.serve.stream.snapshots import SnapshotFolder
from unseen.serve.stream.store import StreamEntry
from unseen.serve.stream.stream import Stream
from unseen.serve.work.jobs import DONE, Job
from unseen.verdicts import finite

LATEST = 60  # verdicts a page shows when it is opened
EVENT = 256  # verdicts in one event of those that came before


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
    tally, drift = session.snapshot.tally, stream.history.drift
    seen, taught = int(tally.seen), int(tally.taught_known + tally.taught_unknown)
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
        "counts": {
            "seen": seen,
            "known": int(tally.known),
            "unknown": seen - int(tally.known),
            "taught_known": int(tally.taught_known),
            "taught_unknown": int(tally.taught_unknown),
        },
        "coverage": taught / seen if seen else 0.0,
        "moved": banks_moved(stream),
        "drift": drift,
        "drifting": drift >= 1,
        "alarm": stream.history.watch.shown(),
        "growing": stream.history.growing,
        "journal_bytes": stream.journal.size(),
        "memory_bytes": stream.memory,
        "disk_bytes": folder_bytes(stream.folder),
        "disk_expected_bytes": stream.expected_disk,
        "replayed": stream.replayed,
        "faults": stream.faults[-10:],
        "snapshots": snapshot_list(stream.snapshots),
        **({"recent": recent_info(entry)} if recent else {}),
    }


def banks_moved(stream: Stream) -> dict[str, float]:
    """For each bank how far its rows have moved from the frozen text on average."""
    state, start = flatten(stream.readers.snapshot.detector), flatten(stream.fresh().snapshot.detector)
    pairs = {name: (bank, start[name]) for name, bank in state.items() if bank.ndim == 2 and start[name].any()}
    return {
        name: float(torch.linalg.vector_norm(bank - anchors, dim=1).mean())
        for name, (bank, anchors) in pairs.items()
        if bank.shape == anchors.shape and bank.shape[1] == stream.labels.dim and len(bank)
    }


def snapshot_list(snapshots: SnapshotFolder) -> list[dict[str, Any]]:
    """The snapshots of a stream, oldest first."""
    found = [(saved, saved.path.stat()) for saved in snapshots.all() if saved.path.exists()]
    return [
        {"snapshot": saved.entry, "kind": saved.kind, "bytes": stat.st_size, "time": int(stat.st_mtime)}
        for saved, stat in found
    ]


def recent_info(entry: StreamEntry) -> dict[str, Any]:
    """Recent margins and the latest verdicts, with which of them have a thumbnail."""
    recent = entry.opened.history.recent
    latest = recent_records(entry, recent.after(recent.first + len(recent.verdicts) - LATEST - 1))
    shown = [row | {"pictured": row["seq"] in entry.thumbnails} for row in latest]
    return {"margins": entry.opened.history.margins, "latest": shown}


def recent_records(entry: StreamEntry, recent: RecentVerdicts) -> list[dict[str, Any]]:
    """Verdicts that are kept, with what their callers called the samples."""
    rows: list[dict[str, Any]] = []
    for part in entry.opened.names.split(recent):
        rows += part.rows([entry.keys.get(part.first + place) for place in range(len(part.verdicts))])
    return rows


def past_events(entry: StreamEntry, after: int) -> list[VerdictEvent]:
    """The verdicts of the samples after one, as far as they are kept."""
    rows = recent_records(entry, entry.opened.history.recent.after(after))
    parts = [rows[start : start + EVENT] for start in range(0, len(rows), EVENT)]
    return [VerdictEvent(part[0]["seq"], part[-1]["seq"], dump_json(_event(entry, part))) for part in parts]


def _event(entry: StreamEntry, rows: list[dict[str, Any]]) -> dict[str, Any]:
    pictured = {"pictured": True} if any(row["seq"] in entry.thumbnails for row in rows) else {}
    return {"verdicts": rows, "repeated": False, **pictured}


def job_info(job: Job) -> dict[str, Any]:
    """How far a job is, and what it made or why it failed."""
    made = job.result if job.status == DONE else None
    started = datetime.fromtimestamp(job.started, UTC).isoformat(timespec="seconds")
    shown = {"job": job.id, "status": job.status, "stage": job.stage, "done": job.done, "total": job.total}
    error = error_content(job.error)[1] if job.error else None
    return {**shown, "started": started, "stream": made, "error": error}


def label_page(labels: LabelSpace, offset: int, *, count: int = 100, top: int = 3) -> dict[str, Any]:
    """A page of known names, each with the negatives closest to it."""
    start = max(0, min(offset, len(labels.names)))
    near = nearest_negatives(labels, top, part=slice(start, start + count))
    shown = [
        {"name": name, "nearest": [{"name": pair.negative, "cosine": pair.cosine} for pair in pairs]}
        for name, pairs in near.items()
    ]
    return {"offset": start, "total": len(labels.names), "names": shown}


def json_response(text: str, status: int = 200) -> Response:
    """JSON text as a response; what is large or frequent is not serialised by the framework."""
    return Response(text, status_code=status, media_type="application/json")
