"""How a service is run: where, with which encoder, within which limits, and how durably."""

from dataclasses import dataclass, field
from pathlib import Path

EVERYONE = "*"  # the owner that sees all streams


@dataclass(frozen=True)
class Limits:
    """Bounds of one request, one stream, one owner."""

    connections: int = 1024  # of all callers; one more is answered 503
    at_once: int = 32  # requests of one owner that are worked on; the others wait their turn
    reads: float = 200  # requests a second of one owner that read; 0 is no limit
    headers: int = 32 << 10  # bytes before a body
    body: int = 64 << 20  # bytes of a request
    body_seconds: float = 30  # a client may take to send its request
    write_seconds: float = 20  # a client may take nothing of its answer; then the connection is closed
    buffered: int = 512 << 20  # bytes of all bodies being received or answered
    buffered_each: int = 128 << 20  # of one owner
    json: int = 8 << 20  # bytes of JSON: while it is parsed no other thread runs Python
    header: int = 8 << 20  # bytes of the header of an uploaded file, which is JSON
    batch: int = 2048  # samples of a request
    pixels: int = 50_000_000  # of one image, checked before it is decoded
    decode_seconds: float = 10  # of a processor that one image may take
    decode_bytes: int = 640 << 20  # of memory that one image may take
    queue: int = 16_384  # samples waiting for one stream
    rate: float = 0  # samples a second of one owner; 0 is no limit
    streams: int = 100  # of one owner
    names: int = 10_000  # of one label space
    negatives: int = 100_000
    name: int = 256  # characters of one of them
    memory: int = 8 << 30  # bytes of the states of all streams
    memory_each: int = 2 << 30  # of one owner's
    jobs: int = 4  # of one owner that run at once
    downloads: int = 8  # of one owner that are being sent
    listeners: int = 32  # event streams open on one stream


@dataclass(frozen=True)
class Durability:
    """How often a stream is snapshotted, and how much is remembered beyond what a restart needs."""

    every: int = 20_000  # samples between two automatic snapshots
    replay_seconds: float = 5  # of computing that a restart may have to repeat, all streams together
    retain: int = 0  # samples that stay in the journal although a snapshot covers them
    receipts: int = 100_000  # idempotency keys remembered
    kept: int = 20  # snapshots taken by hand; the oldest makes room
    stop_seconds: float = 4  # after which a stop takes no more snapshots
    end_seconds: float = 9  # after which a stop ends the process, whatever runs


@dataclass(frozen=True)
class Inside:
    """Numbers that nobody needs to set, and that several places must agree on."""

    autos: int = 2  # automatic snapshots on disk: the older one serves when the newer one is damaged
    unknown: int = 2048  # unknown samples whose vectors a stream keeps: a service has many streams
    images: int = 8  # of one owner that are decoded or wait for it
    key: int = 1024  # characters of what a caller calls an image


@dataclass(frozen=True)
class Page:
    """What a stream keeps in memory for those who look at it; it starts empty after a restart."""

    recent: int = 2048  # verdicts
    settled: int = 1000  # samples after which a detector has learned most


INSIDE, PAGE = Inside(), Page()


@dataclass(frozen=True)
class Settings:
    """How a service is run."""

    data: Path
    host: str = "127.0.0.1"
    encoder: str | None = "offline"
    limits: Limits = field(default_factory=Limits)
    durability: Durability = field(default_factory=Durability)
    logs: Path | None = None  # folder of access.jsonl and audit.jsonl
    behind_proxy: bool = False  # whether nginx is in front: a key is needed, and its headers are believed
    compute: int = 1  # cores that work on one block; blocks of several streams are worked on beside each other
