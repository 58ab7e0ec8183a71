"""What there is to say about a stream: for a list, for a page, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from unseen import LabelSpace
from unseen.serve import payload
from unseen.serve.metrics import Metrics
from unseen.serve.stream import Answer, Stream
from unseen.serve.streams import Slot, opened

LATEST = 60  # verdicts a page shows when it is opened


def brief(slot: Slot) -> dict[str, Any]:
    """Return what a list shows of a stream."""
    config = slot.config
    shown = {"id": config.id, "name": config.name, "owner": config.owner, "detector": config.detector}
    shown |= {"created": config.created, "status": slot.status}
    if slot.reason:
        shown["reason"] = slot.reason
    return shown if slot.stream is None else {**shown, "seq": slot.stream.at.seq}


def described(slot: Slot) -> dict[str, Any]:
    """Return everything there is to say about a stream."""
    if slot.stream is None:
        return brief(slot)
    stream, labels, session = slot.stream, slot.stream.labels, slot.stream.readers
    tally, drift = session.snapshot.tally, stream.history.drift
    seen, taught = int(tally.seen), int(tally.taught_known + tally.taught_unknown)
    return {
        **brief(slot),
        "settings": session.detector.settings,
        "threshold": {
            "kind": session.rule.name,
            "settings": session.rule.settings,
            "line": payload.finite(session.threshold),
            "warming": session.is_warming,
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
        "moved": stream.moved(),
        "drift": drift,
        "drifting": drift >= 1,
        "journal_bytes": stream.journal.size(),
        "replayed": stream.replayed,
        "faults": stream.faults[-10:],
        "snapshots": saved(stream),
    }


def saved(stream: Stream) -> list[dict[str, Any]]:
    """Return the snapshots of a stream, oldest first."""
    return [
        {
            "snapshot": one.entry,
            "kind": one.kind,
            "bytes": one.path.stat().st_size,
            "time": int(one.path.stat().st_mtime),
        }
        for one in stream.saved()
        if one.path.exists()
    ]


def past(slot: Slot) -> dict[str, Any]:
    """Return how a stream went: curves, recent margins, and what was said last, with which of it has a picture."""
    stream = opened(slot)
    history, last = stream.history, stream.history.latest[-LATEST:]
    first = stream.at.seq - len(last)
    latest = payload.verdicts(Answer(first, last), stream.labels.names)["verdicts"] if len(last) else []
    return {
        "points": [point._asdict() for point in history.points],
        "margins": history.margins,
        "drift": history.drift,
        "latest": [row | {"pictured": row["seq"] in slot.pictures} for row in latest],
    }


def nearest(labels: LabelSpace, offset: int, *, count: int = 100, top: int = 3) -> dict[str, Any]:
    """Return a page of known names, each with the negatives closest to it."""
    start = max(0, min(offset, len(labels.names)))
    rows = labels.id_anchors[start : start + count]
    cosines, places = (rows @ labels.ood_anchors.T).topk(min(top, len(labels.negatives)))
    names = zip(labels.names[start : start + count], cosines.tolist(), places.tolist(), strict=True)
    shown = [
        {"name": name, "nearest": [{"name": labels.negatives[i], "cosine": c} for c, i in zip(close, at, strict=True)]}
        for name, close, at in names
    ]
    return {"offset": start, "total": len(labels.names), "names": shown}


def counted(metrics: Metrics, slot: Slot, answer: Answer) -> None:
    """Add an answer to the counters."""
    known, route = np.count_nonzero(answer.records["known"]), answer.records["route"]
    stream = slot.config.id
    if slot.counters is None:  # looking labels up costs more than counting
        sides = ("known", "unknown")
        slot.counters = [count.labels(stream, side) for count in (metrics.samples, metrics.taught) for side in sides]
    taught_known, taught_unknown = np.count_nonzero(route > 0), np.count_nonzero(route < 0)
    numbers = (known, len(route) - known, taught_known, taught_unknown)
    for counter, number in zip(slot.counters, numbers, strict=True):
        counter.inc(int(number))


def measured(metrics: Metrics, slots: Iterable[Slot]) -> bytes:
    """Return the metrics with gauges as they stand now."""
    for gauge in (metrics.streams, metrics.journal, metrics.waiting, metrics.drift, metrics.faults):
        gauge.clear()
    for slot in slots:
        metrics.streams.labels(slot.status).inc()
        if slot.stream and slot.observe:
            key = slot.config.id
            metrics.journal.labels(key).set(slot.stream.journal.size())
            metrics.waiting.labels(key).set(slot.observe.waiting)
            metrics.drift.labels(key).set(slot.stream.history.drift)
            metrics.faults.labels(key).set(len(slot.stream.faults))
    return metrics.text()
