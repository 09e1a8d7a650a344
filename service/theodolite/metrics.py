"""Every Prometheus metric, in base units; labels are of bounded size and never what a user chose.

The service shows its own at `/metrics`; the driver of a survey serves its own too, on a port of its own.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from theodolite import __version__
from theodolite.errors import TheodoliteError

REGISTRY = CollectorRegistry()

_SECONDS_OF_SHARDS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
_SECONDS_OF_STATISTICS = (1, 5, 15, 60, 300, 900, 3600, 14400)


def _counter(name: str, about: str, *labels: str) -> Counter:
    return Counter(name, about, labels, registry=REGISTRY)


def _gauge(name: str, about: str, *labels: str) -> Gauge:
    return Gauge(name, about, labels, registry=REGISTRY)


def _histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(name, about, labels, buckets=buckets, registry=REGISTRY)


BUILD = _gauge("theodolite_build_info", "The version that runs.", "version")
BUILD.labels(__version__).set(1)

HTTP_REQUESTS = _counter("theodolite_http_requests_total", "Requests answered, by route and status.", "route", "status")
HTTP_SECONDS = _histogram(
    "theodolite_http_request_seconds",
    "Seconds from a request to the end of its answer, by route.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    "route",
)

STORE_ERRORS = _counter("theodolite_store_errors_total", "The store could not be reached, read or written.", "reason")
STORE_REASONS = ("store", "run-damaged")
for _reason in STORE_REASONS:
    STORE_ERRORS.labels(_reason)  # a series that begins at 1 is never seen to grow

STATISTICS_SECONDS = _histogram(
    "theodolite_statistics_seconds", "An analysis of a run.", _SECONDS_OF_STATISTICS, "analysis"
)

_PER_SHARD = {
    "prompts": _counter("theodolite_prompts_captured_total", "Prompts of committed shards.", "model"),
    "tokens": _counter(
        "theodolite_tokens_captured_total", "Tokens of those prompts, shared first ones included.", "model"
    ),
    "shared_tokens": _counter(
        "theodolite_prefix_tokens_saved_total", "Tokens not computed, for all prompts begin with them.", "model"
    ),
    "padding_tokens": _counter(
        "theodolite_padding_tokens_total", "Tokens computed for nothing, to fill batches.", "model"
    ),
    "quarantined": _counter(
        "theodolite_prompts_quarantined_total", "Prompts whose activations cannot be used.", "model"
    ),
    "oom_backoffs": _counter("theodolite_oom_backoffs_total", "Batches split because memory ran out.", "model"),
    "stored_bytes": _counter("theodolite_store_bytes_written_total", "Encoded arrays of shards.", "model"),
}
_SHARDS = _counter("theodolite_shards_committed_total", "Shards committed.", "model")
_RETRIES = _counter("theodolite_shard_retries_total", "Shards that went back to the queue.", "model", "reason")
_CAPTURE_SECONDS = _histogram(
    "theodolite_capture_seconds", "Forward passes and copies of a shard.", _SECONDS_OF_SHARDS, "model"
)
_WRITE_SECONDS = _histogram("theodolite_store_write_seconds", "Writing a shard's arrays.", _SECONDS_OF_SHARDS, "model")
_REPLICAS = _gauge("theodolite_replicas", "Copies of the model that work.", "model")
_PROGRESS = _gauge("theodolite_run_progress_ratio", "Share of the survey's prompts that are committed.", "model")


def count_store_error(error: TheodoliteError) -> None:
    """Count an error of the store; others, such as a run that is not there, are no fault of it."""
    if error.kind() in STORE_REASONS:
        STORE_ERRORS.labels(error.kind()).inc()


class CaptureMetrics:
    """What the driver of one survey counts of its capture.

    Args:
        model: the model's short name.
        reasons: why a shard may go back to the queue.
    """

    def __init__(self, model: str, reasons: tuple[str, ...]) -> None:
        self._model = model
        for metric in (*_PER_SHARD.values(), _SHARDS):
            metric.labels(model)
        for reason in reasons:
            _RETRIES.labels(model, reason)

    def committed(self, numbers: Mapping[str, Any]) -> None:
        """Count a shard, by the numbers of its commit record (`Commit.numbers`)."""
        _SHARDS.labels(self._model).inc()
        for name, metric in _PER_SHARD.items():
            metric.labels(self._model).inc(numbers[name])
        _CAPTURE_SECONDS.labels(self._model).observe(numbers["seconds"])
        _WRITE_SECONDS.labels(self._model).observe(numbers["store_seconds"])

    def retried(self, reason: str) -> None:
        """Count a shard that goes back to the queue."""
        _RETRIES.labels(self._model, reason).inc()

    def replicas(self, count: int) -> None:
        """Say how many replicas work."""
        _REPLICAS.labels(self._model).set(count)

    def progress(self, done: int, total: int) -> None:
        """Say how many prompts of all are committed."""
        _PROGRESS.labels(self._model).set(done / total)


@contextmanager
def timed(analysis: str) -> Iterator[None]:
    """Observe how long an analysis takes."""
    began = time.monotonic()
    yield
    STATISTICS_SECONDS.labels(analysis).observe(time.monotonic() - began)
