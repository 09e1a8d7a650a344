"""Every Prometheus metric, in base units; labels are of bounded size and never what a user chose.

The service shows them at `/metrics`. The driver of a survey, which lives as long as that, serves its own port, and says
where in a file that Prometheus looks for.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from theodolite import __version__
from theodolite.errors import SpecError, StoreError, TheodoliteError
from theodolite.settings import Settings

REGISTRY = CollectorRegistry()

_SECONDS_OF_SILENCE = 600.0
"""A target file that was not written again for so long is one of a driver that was killed."""

_SECONDS_OF_SHARDS = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
_SECONDS_OF_STATISTICS = (1, 5, 15, 60, 300, 900, 3600, 14400)


def _counter(name: str, about: str, *labels: str) -> Counter:
    return Counter(f"theodolite_{name}", about, labels, registry=REGISTRY)


def _gauge(name: str, about: str, *labels: str) -> Gauge:
    return Gauge(f"theodolite_{name}", about, labels, registry=REGISTRY)


def _histogram(name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"theodolite_{name}", about, labels, buckets=buckets, registry=REGISTRY)


BUILD = _gauge("build_info", "The version that runs.", "version")
BUILD.labels(__version__).set(1)

HTTP_REQUESTS = _counter("http_requests", "Requests answered, by route and status.", "route", "status")
HTTP_SECONDS = _histogram(
    "http_request_seconds",
    "Seconds from a request to the end of its answer, by route.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    "route",
)

STORE_ERRORS = _counter("store_errors", "The store could not be reached, read or written.", "reason")
STORE_REASONS = ("store", "run-damaged")
for _reason in STORE_REASONS:
    STORE_ERRORS.labels(_reason)  # a series that begins at 1 is never seen to grow

STATISTICS_SECONDS = _histogram("statistics_seconds", "An analysis of a run.", _SECONDS_OF_STATISTICS, "analysis")

_PER_SHARD = {
    "prompts": _counter("prompts_captured", "Prompts of committed shards.", "model"),
    "tokens": _counter("tokens_captured", "Tokens of those prompts, shared first ones included.", "model"),
    "shared_tokens": _counter("prefix_tokens_saved", "Tokens not computed, for all prompts begin with them.", "model"),
    "padding_tokens": _counter("padding_tokens", "Tokens computed for nothing, to fill batches.", "model"),
    "quarantined": _counter("prompts_quarantined", "Prompts whose activations cannot be used.", "model"),
    "oom_backoffs": _counter("oom_backoffs", "Batches split because memory ran out.", "model"),
    "stored_bytes": _counter("store_bytes_written", "Encoded arrays of shards.", "model"),
}
_SHARDS = _counter("shards_committed", "Shards committed.", "model")
_RETRIES = _counter("shard_retries", "Shards that went back to the queue.", "model", "reason")
_CAPTURE_SECONDS = _histogram("capture_seconds", "Forward passes and copies of a shard.", _SECONDS_OF_SHARDS, "model")
_WRITE_SECONDS = _histogram("store_write_seconds", "Writing a shard's arrays.", _SECONDS_OF_SHARDS, "model")
_REPLICAS = _gauge("replicas", "Copies of the model that work.", "model")
_PROGRESS = _gauge("run_progress_ratio", "Share of the survey's prompts that are committed.", "model")


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


@contextmanager
def served(settings: Settings) -> Iterator[None]:
    """Serve this process's metrics for as long as the context lasts, and a little longer, where settings ask for it.

    Raises:
        SpecError: the port is taken.
        SystemExit: the process was told to stop, by SIGTERM; then it does not stay longer.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(settings.metrics_port, registry=REGISTRY)
    except OSError as error:
        raise SpecError(f"THEODOLITE_METRICS_PORT: cannot listen on {settings.metrics_port}: {error}") from error
    before = signal.signal(signal.SIGTERM, _exit)  # which by itself would end the process and leave the file
    try:
        with _announced(settings.metrics_targets, server.server_port):
            try:
                yield
            except StoreError as error:
                count_store_error(error)
                raise
            finally:
                if not isinstance(sys.exception(), SystemExit | KeyboardInterrupt):
                    time.sleep(settings.metrics_linger_seconds)  # what was counted last can still be asked for
    finally:
        signal.signal(signal.SIGTERM, before)
        server.shutdown()
        thread.join()
        server.server_close()


def _exit(_signal: int, _frame: Any) -> None:
    sys.exit(128 + signal.SIGTERM)


@contextmanager
def _announced(folder: Path | None, port: int) -> Iterator[None]:
    """Say in a file where these metrics are, and that they still are; files that killed drivers left are removed.

    Raises:
        SpecError: the folder cannot be written.
    """
    if folder is None:
        yield
        return
    address = _own_address()
    file, content = folder / f"theodolite-{address}-{port}.json", json.dumps([{"targets": [f"{address}:{port}"]}])
    try:
        for left in folder.glob("theodolite-*.json"):
            with suppress(FileNotFoundError):  # another one just took it away
                if time.time() - left.stat().st_mtime > _SECONDS_OF_SILENCE:
                    left.unlink()
        _write_whole(file, content)
    except OSError as error:
        raise SpecError(f"THEODOLITE_METRICS_TARGETS: cannot write {folder}: {error}") from error
    ended = threading.Event()
    alive = threading.Thread(target=_say_again, args=(file, content, ended), daemon=True)
    alive.start()
    try:
        yield
    finally:
        ended.set()
        alive.join()
        file.unlink(missing_ok=True)


def _say_again(file: Path, content: str, ended: threading.Event) -> None:
    """Write a file again from time to time, until its driver has ended."""
    while not ended.wait(_SECONDS_OF_SILENCE / 10):
        with suppress(OSError):  # the folder does not answer for a while
            _write_whole(file, content)


def _own_address() -> str:
    """Return the address that this machine's others reach it by; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of a range that is nobody's, so the way to it is the way to all others
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _write_whole(file: Path, content: str) -> None:
    """Write a file that is never seen half-written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(content)
    os.replace(partial, file)
