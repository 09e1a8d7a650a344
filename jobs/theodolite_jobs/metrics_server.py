"""Serving the metrics of a survey's driver, and telling Prometheus where they are.

A driver lives as long as its survey. It serves its metrics on a port, and writes the address to a file in a folder that
Prometheus watches (`file_sd_configs`).
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
from theodolite.metrics import REGISTRY, count_store_error
from theodolite.settings import Settings

_SECONDS_OF_SILENCE = 600.0
"""A target file that was not written again for so long is that of a killed driver."""


@contextmanager
def served(settings: Settings) -> Iterator[None]:
    """Serve this process's metrics while the context lasts, and a little longer, where settings name a port.

    Raises:
        SpecError: the port is taken, or the folder of target files cannot be written.
        SystemExit: SIGTERM stopped the process; then it does not stay longer.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(settings.metrics_port, registry=REGISTRY)
    except OSError as error:
        raise SpecError(f"THEODOLITE_METRICS_PORT: cannot listen on {settings.metrics_port}: {error}") from error
    before = signal.signal(signal.SIGTERM, _exit)  # the default handler would leave the target file behind
    try:
        with _announced(settings.metrics_targets, server.server_port):
            try:
                yield
            except StoreError as error:
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
def _announced(folder: Path | None, port: int) -> Iterator[None]:
    """Keep a target file while the context lasts, and remove target files that killed drivers left.

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
        for left in folder.glob("theodolite-*.json"):
            with suppress(FileNotFoundError):  # another driver has just removed it
                if time.time() - left.stat().st_mtime > _SECONDS_OF_SILENCE:
                    left.unlink()
        write_atomically(file, content)
    except OSError as error:
        raise SpecError(f"THEODOLITE_METRICS_TARGETS: cannot write {folder}: {error}") from error
    ended = threading.Event()
    alive = threading.Thread(target=_rewrite, args=(file, content, ended), daemon=True)
    alive.start()
    try:
        yield
    finally:
        ended.set()
        alive.join()
        file.unlink(missing_ok=True)


def _rewrite(file: Path, content: bytes, ended: threading.Event) -> None:
    """Write a file again from time to time, so that its age says whether the driver lives, until the driver ends."""
    while not ended.wait(_SECONDS_OF_SILENCE / 10):
        with suppress(OSError):  # the folder may not answer for a while
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)


def _own_address() -> str:
    """Return the address by which other machines reach this one; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation, so its route is the default one
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
