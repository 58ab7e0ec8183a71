"""Counters for Prometheus, in a registry of their own so that two services in one process do not clash."""

from collections import Counter as TallyOf
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from unseen.serve.stream.store import StreamEntry
from unseen.serve.stream.stream import Stream
from unseen.serve.work.batcher import MicroBatcher
from unseen.session import Tally

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
GAUGES = {
    "unseen_journal_bytes": "Journal on disk",
    "unseen_waiting_samples": "Samples waiting for the writer",
    "unseen_waiting_seconds": "Age of the oldest waiting request",
    "unseen_drift": "Change of recent margins; 1 is the alarm",
    "unseen_unknown_alarm": "1 while the unknown rate alarms",
    "unseen_faults": "Damaged or missed snapshots",
}  # of one stream


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
        samples = CounterMetricFamily("unseen_samples", "Samples observed, by verdict", labels=["stream", "verdict"])
        taught = CounterMetricFamily("unseen_taught", "Samples that taught, by side", labels=["stream", "side"])
        gauges = {name: GaugeMetricFamily(name, text, labels=["stream"]) for name, text in GAUGES.items()}
        for entry in entries:
            if entry.stream and entry.observe:
                _count(entry.config.id, entry.stream.readers.snapshot.tally, samples, taught)
                for gauge, value in zip(gauges.values(), _values(entry.stream, entry.observe), strict=True):
                    gauge.add_metric([entry.config.id], value)
        yield from (samples, taught, *gauges.values())


def _count(id: str, tally: Tally, samples: CounterMetricFamily, taught: CounterMetricFamily) -> None:
    known = int(tally.known)
    samples.add_metric([id, "known"], known)
    samples.add_metric([id, "unknown"], int(tally.seen) - known)
    taught.add_metric([id, "known"], int(tally.taught_known))
    taught.add_metric([id, "unknown"], int(tally.taught_unknown))


def _values(stream: Stream, observe: MicroBatcher[Any, Any]) -> tuple[float, ...]:
    """The values of GAUGES."""
    drift, is_raised = stream.history.drift, stream.history.watch.raised_at is not None
    return stream.journal.size(), observe.waiting, observe.age, drift, is_raised, len(stream.faults)


class Metrics:
    """What the service counts about itself."""

    def __init__(self, entries: Callable[[], Iterable[StreamEntry]]) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "unseen_requests", "Requests by route and status", ["route", "status"], registry=registry
        )
        self.latency = Histogram(
            "unseen_request_seconds", "Time to answer", ["route"], buckets=SECONDS, registry=registry
        )
        self.refused = Counter("unseen_refused", "Requests refused, by code of the error", ["code"], registry=registry)
        self.commit = Histogram(
            "unseen_commit_seconds", "Time to write a block and wait for the disk", buckets=SECONDS, registry=registry
        )
        self.log_dropped = Gauge("unseen_log_lines_dropped", "Lines that could not be logged", registry=registry)
        ProcessCollector(registry=registry)  # memory, open files, CPU seconds
        registry.register(StreamCollector(entries))
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

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)
