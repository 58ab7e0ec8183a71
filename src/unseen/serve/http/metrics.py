"""Counters for Prometheus, in a registry of their own so that two services in one process do not clash."""

from collections import Counter as TallyOf
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from unseen.serve.stream.store import StreamEntry
from unseen.serve.stream.stream import Stream

BUCKETS = tuple(float(f"1e{power}") * step for power in range(-3, 1) for step in (1, 2.5, 5))  # seconds
GAUGES: dict[str, Callable[[StreamEntry, Stream], float]] = {  # of one stream
    "unseen_journal_bytes": lambda _, stream: stream.journal.size(),
    "unseen_waiting_samples": lambda entry, _: entry.observe.waiting if entry.observe else 0,
    "unseen_waiting_seconds": lambda entry, _: entry.observe.age if entry.observe else 0,
    "unseen_drift": lambda _, stream: stream.history.drift,
    "unseen_unknown_alarm": lambda _, stream: stream.history.watch.raised_at is not None,
    "unseen_faults": lambda _, stream: len(stream.faults),
}


class StreamCollector(Collector):
    """Numbers of the streams, read when they are asked for; counters go on after a restart, and a reset clears them."""

    def __init__(self, entries: Callable[[], Iterable[StreamEntry]]) -> None:
        self._entries = entries

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, with a row per stream that is open."""
        entries = list(self._entries())
        statuses = GaugeMetricFamily("unseen_streams", "Streams by status", labels=["status"])
        for status, count in TallyOf(entry.status for entry in entries).items():
            statuses.add_metric([status], count)
        yield statuses
        opened = [(entry, entry.stream) for entry in entries if entry.stream]
        samples = CounterMetricFamily("unseen_samples", "Samples observed, by verdict", labels=["stream", "verdict"])
        for entry, stream in opened:
            tally = stream.readers.snapshot.tally
            samples.add_metric([entry.config.id, "known"], int(tally.known))
            samples.add_metric([entry.config.id, "unknown"], int(tally.seen - tally.known))
        yield samples
        for name, value in GAUGES.items():
            gauge = GaugeMetricFamily(name, "docs/how-to/production.md says what it means", labels=["stream"])
            for entry, stream in opened:
                gauge.add_metric([entry.config.id], value(entry, stream))
            yield gauge


class Metrics:
    """What the service counts about itself."""

    def __init__(self, entries: Callable[[], Iterable[StreamEntry]]) -> None:
        self._registry = into = CollectorRegistry()
        labels = ["route", "status"]
        self.requests = Counter("unseen_requests", "Requests by route and status", labels, registry=into)
        self.latency = Histogram("unseen_request_seconds", "To answer", ["route"], buckets=BUCKETS, registry=into)
        self.refused = Counter("unseen_refused", "Requests refused, by code of the error", ["code"], registry=into)
        self.commit = Histogram("unseen_commit_seconds", "To write a block", buckets=BUCKETS, registry=into)
        self.log_dropped = Gauge("unseen_log_lines_dropped", "Lines that could not be logged", registry=into)
        ProcessCollector(registry=into)  # memory, open files, CPU seconds
        into.register(StreamCollector(entries))

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)
