"""All Prometheus metrics, in base units. Labels have few values, and none that a user chooses.

The service serves its metrics at `/metrics`. The driver of a survey serves its metrics on its own port.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from theodolite.errors import TheodoliteError
from theodolite.version import __version__

REGISTRY = CollectorRegistry()

_SECONDS_OF_SHARDS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
_SECONDS_OF_WRITES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SECONDS_OF_STATISTICS = (1, 5, 15, 60, 300, 900, 3600, 14400)

_counter = partial(Counter, registry=REGISTRY)
_gauge = partial(Gauge, registry=REGISTRY)
_histogram = partial(Histogram, registry=REGISTRY)

BUILD = _gauge("theodolite_build_info", "Version of Theodolite.", ["version"])
BUILD.labels(__version__).set(1)

HTTP_REQUESTS = _counter(
    "theodolite_http_requests_total", "Answered HTTP requests, by route and status.", ["route", "status"]
)
HTTP_SECONDS = _histogram(
    "theodolite_http_request_seconds",
    "Time from a request to the end of its response, by route.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)

STORE_ERRORS = _counter(
    "theodolite_store_errors_total",
    "Errors of the store: it could not be reached, read or written, or a run is damaged.",
    ["reason"],
)
STORE_REASONS = ("store", "run-damaged")
for _reason in STORE_REASONS:
    STORE_ERRORS.labels(_reason)  # start at 0: `rate` does not see the first increment of a new series

SURVEY_FAILED = _gauge(
    "theodolite_survey_failed", "1 if the driver's survey ended with an error, otherwise 0; always 0 for the service."
)

STATISTICS_SECONDS = _histogram(
    "theodolite_statistics_seconds", "Run time of an analysis.", ["analysis"], buckets=_SECONDS_OF_STATISTICS
)

_PER_SHARD = {
    "prompts": _counter("theodolite_prompts_captured_total", "Prompts in committed shards.", ["model"]),
    "tokens": _counter(
        "theodolite_tokens_captured_total",
        "Tokens of the prompts in committed shards, including the shared prefix.",
        ["model"],
    ),
    "shared_tokens": _counter(
        "theodolite_prefix_tokens_saved_total", "Tokens not computed, because they are in a shared prefix.", ["model"]
    ),
    "padding_tokens": _counter("theodolite_padding_tokens_total", "Computed tokens that are padding.", ["model"]),
    "quarantined": _counter(
        "theodolite_prompts_quarantined_total",
        "Prompts excluded because of their activations, such as values that are not finite.",
        ["model"],
    ),
    "spot_checks": _counter(
        "theodolite_spot_checks_total", "Prompts compared with plain Hugging Face while the survey ran.", ["model"]
    ),
    "spot_checks_rerouted": _counter(
        "theodolite_spot_checks_rerouted_total",
        "Spot checks in which rounding routed a token to other experts.",
        ["model"],
    ),
    "oom_backoffs": _counter("theodolite_oom_backoffs_total", "Batches split because memory ran out.", ["model"]),
    "stored_bytes": _counter(
        "theodolite_store_bytes_written_total", "Bytes of the encoded arrays of committed shards.", ["model"]
    ),
    "idle_seconds": _counter(
        "theodolite_replica_idle_seconds_total",
        "Time that replicas waited between shards: for the driver, or until other shards were written. A GPU may still "
        "compute during a part of it.",
        ["model"],
    ),
}
_MEASURED = _counter(
    "theodolite_prompts_measured_total",
    "Prompts of the stored parts of the analysis effects, once for each contrast and position.",
    ["model"],
)
_SHARDS = _counter("theodolite_shards_committed_total", "Committed shards.", ["model"])
_RETRIES = _counter("theodolite_shard_retries_total", "Requeued shards, by reason.", ["model", "reason"])
_PER_SHARD_SECONDS = {
    "seconds": _histogram(
        "theodolite_capture_seconds",
        "Time from the first forward pass of a shard until its activations are on the host; on a GPU with the wait for "
        "a free writer.",
        ["model"],
        buckets=_SECONDS_OF_SHARDS,
    ),
    "encode_seconds": _histogram(
        "theodolite_encode_seconds",
        "Time to encode the arrays of a shard and to compute their checksums.",
        ["model"],
        buckets=_SECONDS_OF_WRITES,
    ),
    "store_seconds": _histogram(
        "theodolite_store_write_seconds", "Time to write the arrays of a shard.", ["model"], buckets=_SECONDS_OF_WRITES
    ),
    "commit_seconds": _histogram(
        "theodolite_commit_seconds",
        "Time to create the commit record of a shard and to move its arrays to their Zarr keys.",
        ["model"],
        buckets=_SECONDS_OF_WRITES,
    ),
}
_SPOT_CHECK_ERROR = _gauge(
    "theodolite_spot_check_error", "Largest relative error of the spot checks of the survey.", ["model"]
)
_REPLICAS = _gauge("theodolite_replicas", "Ready replicas of the model.", ["model"])
_WANTED = _gauge("theodolite_replicas_wanted", "Replicas that the survey requests.", ["model"])
_PROGRESS = _gauge("theodolite_run_progress_ratio", "Share of the survey's prompts that are committed.", ["model"])


def count_store_error(error: TheodoliteError) -> None:
    """Count an error of the store itself; errors such as an unknown run are not counted."""
    if error.kind() in STORE_REASONS:
        STORE_ERRORS.labels(error.kind()).inc()


class CaptureMetrics:
    """The capture metrics of one survey's driver.

    Args:
        model: the model's short name.
        reasons: the reasons to requeue a shard.
    """

    def __init__(self, model: str, reasons: tuple[str, ...]) -> None:
        self._model = model
        self._spot_check_error = 0.0
        for metric in (*_PER_SHARD.values(), _SHARDS, _MEASURED):
            metric.labels(model)
        for reason in reasons:
            _RETRIES.labels(model, reason)

    def committed(self, numbers: Mapping[str, Any]) -> None:
        """Count a committed shard from the numbers that its replica returns."""
        _SHARDS.labels(self._model).inc()
        for name, metric in _PER_SHARD.items():
            metric.labels(self._model).inc(numbers[name])
        self._spot_check_error = max(self._spot_check_error, numbers["spot_check_error"])
        _SPOT_CHECK_ERROR.labels(self._model).set(self._spot_check_error)
        for name, histogram in _PER_SHARD_SECONDS.items():
            histogram.labels(self._model).observe(numbers[name])

    def measured(self, prompts: int) -> None:
        """Count the prompts of a stored part of the analysis effects."""
        _MEASURED.labels(self._model).inc(prompts)

    def retried(self, reason: str) -> None:
        """Count a requeued shard."""
        _RETRIES.labels(self._model, reason).inc()

    def replicas(self, count: int) -> None:
        """Set the number of ready replicas."""
        _REPLICAS.labels(self._model).set(count)

    def wanted(self, count: int) -> None:
        """Set the number of replicas that the survey requests."""
        _WANTED.labels(self._model).set(count)

    def progress(self, done: int, total: int) -> None:
        """Set the share of committed prompts."""
        _PROGRESS.labels(self._model).set(done / total)


@contextmanager
def timed(analysis: str) -> Iterator[None]:
    """Observe the run time of an analysis, unless it raises."""
    start = time.monotonic()
    yield
    STATISTICS_SECONDS.labels(analysis).observe(time.monotonic() - start)
