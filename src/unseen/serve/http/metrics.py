"""Counters for Prometheus, in a registry of their own so that two services in one process do not clash."""

from contextlib import suppress
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    """What the service counts about itself."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "unseen_requests", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.latency = Histogram(
            "unseen_request_seconds", "Time to answer", ["route"], buckets=SECONDS, registry=registry
        )
        self.samples = Counter(
            "unseen_samples", "Samples observed, by verdict", ["stream", "verdict"], registry=registry
        )
        self.taught = Counter("unseen_taught", "Samples that taught, by side", ["stream", "side"], registry=registry)
        self.streams = Gauge("unseen_streams", "Streams by status", ["status"], registry=registry)
        self.journal = Gauge("unseen_journal_bytes", "Journal on disk", ["stream"], registry=registry)
        self.waiting = Gauge("unseen_waiting_samples", "Samples waiting for the writer", ["stream"], registry=registry)
        self.drift = Gauge("unseen_drift", "Change of recent margins; 1 is the alarm", ["stream"], registry=registry)
        self.age = Gauge("unseen_waiting_seconds", "Age of the oldest waiting request", ["stream"], registry=registry)
        self.alarm = Gauge("unseen_unknown_alarm", "1 while the unknown rate alarms", ["stream"], registry=registry)
        self.refused = Counter("unseen_refused", "Requests refused, by code of the error", ["code"], registry=registry)
        self.commit = Histogram(
            "unseen_commit_seconds", "Time to write a block and wait for the disk", buckets=SECONDS, registry=registry
        )
        self.log_dropped = Gauge("unseen_log_lines_dropped", "Lines that could not be logged", registry=registry)
        ProcessCollector(registry=registry)  # memory, open files, CPU seconds
        self.faults = Gauge("unseen_faults", "Damaged or missed snapshots", ["stream"], registry=registry)

        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, status: int, seconds: float, code: str = "") -> None:
        """Count a request; looking a label up costs more than counting, so it is done once."""
        if (route, status) not in self._answered:
            self._answered[route, status] = self.requests.labels(route, status), self.latency.labels(route)
        count, times = self._answered[route, status]
        count.inc()
        times.observe(seconds)
        if code:
            self.refused.labels(code).inc()

    def forget(self, stream: str) -> None:
        """Drop the counters of a stream that is deleted."""
        for counter, side in product((self.samples, self.taught), ("known", "unknown")):
            with suppress(KeyError):  # never counted
                counter.remove(stream, side)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)
