"""Serve the metrics of a survey's driver, and register the address with Prometheus.

The driver runs as long as its survey. It serves its metrics on a port, and writes the address to a target file in a
folder that Prometheus watches (`file_sd_configs`).
"""

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import start_http_server

from theodolite.errors import SpecError, StoreError
from theodolite.files import write_atomically
from theodolite.metrics import REGISTRY, SURVEY_FAILED, count_store_error
from theodolite.settings import Settings


@contextmanager
def served(settings: Settings, *, stale_seconds: float = 600.0) -> Iterator[None]:
    """Serve this process's metrics until the context ends, plus `metrics_linger_seconds`, if the settings have a port.

    If the context ends with an error, `theodolite_survey_failed` is 1 while the metrics linger.

    Args:
        settings: port, folder of target files, and lingering time.
        stale_seconds: age of a target file after which its driver counts as killed; live drivers rewrite theirs.

    Raises:
        SpecError: the port is in use, or the folder of target files cannot be written.
        SystemExit: SIGTERM stopped the process; then the metrics end at once.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(settings.metrics_port, registry=REGISTRY)
    except OSError as error:
        raise SpecError(f"THEODOLITE_METRICS_PORT: cannot listen on {settings.metrics_port}: {error}") from error
    SURVEY_FAILED.set(0)
    before = signal.signal(signal.SIGTERM, _exit)  # the default handler would not remove the target file
    try:
        with _announced(settings.metrics_targets, server.server_port, stale_seconds):
            try:
                yield
            except Exception as error:  # SIGTERM and Ctrl-C stop a survey, and raise no Exception
                SURVEY_FAILED.set(1)
                if isinstance(error, StoreError):
                    count_store_error(error)
                raise
            finally:
                if not isinstance(sys.exception(), SystemExit | KeyboardInterrupt):
                    time.sleep(settings.metrics_linger_seconds)  # so that Prometheus reads the last counts
    finally:
        signal.signal(signal.SIGTERM, before)
        server.shutdown()
        thread.join()
        server.server_close()


def _exit(_signal: int, _frame: Any) -> None:
    sys.exit(128 + signal.SIGTERM)


@contextmanager
def _announced(folder: Path | None, port: int, stale_seconds: float) -> Iterator[None]:
    """Write a target file until the context ends, and remove the stale target files of killed drivers.

    Raises:
        SpecError: the folder cannot be written.
    """
    if folder is None:
        yield
        return
    address = _own_address()
    file = folder / f"theodolite-{address}-{port}.json"
    content = json.dumps([{"targets": [f"{address}:{port}"]}]).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("theodolite-*.json"):
            with suppress(FileNotFoundError):  # another driver has just removed it
                if time.time() - stale.stat().st_mtime > stale_seconds:
                    stale.unlink()
        write_atomically(file, content)
    except OSError as error:
        raise SpecError(f"THEODOLITE_METRICS_TARGETS: cannot write {folder}: {error}") from error
    ended = threading.Event()
    rewriter = threading.Thread(target=_rewrite, args=(file, content, stale_seconds / 10, ended), daemon=True)
    rewriter.start()
    try:
        yield
    finally:
        ended.set()
        rewriter.join()
        file.unlink(missing_ok=True)


def _rewrite(file: Path, content: bytes, seconds: float, ended: threading.Event) -> None:
    """Rewrite a target file at intervals until the driver ends, so that its age shows whether the driver runs."""
    while not ended.wait(seconds):
        with suppress(OSError):  # the folder may be unavailable for a while
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)


def _own_address() -> str:
    """Return this machine's address on the default route; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation, so it takes the default route
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
