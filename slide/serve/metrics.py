"""Counters and times of a server, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = tuple(2.0**power for power in range(11))


class Metrics:
    """The metrics of one server.

    Args:
        waiting: the number of rows that wait.
    """

    def __init__(self, waiting: Callable[[], int]):
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ("path", "status")
        self.requests = Counter("slide_requests", "Requests.", labels, registry=registry)
        about = "Seconds from the last byte of a request to its answer."
        self.seconds = Histogram(
            "slide_request_seconds", about, ("path",), buckets=_SECONDS, registry=registry
        )
        about = "Rows that were answered in one product."
        self.batch_rows = Histogram("slide_batch_rows", about, buckets=_ROWS, registry=registry)
        gauge = Gauge("slide_waiting_rows", "Rows that wait for a batch.", registry=registry)
        gauge.set_function(waiting)

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self.registry)
