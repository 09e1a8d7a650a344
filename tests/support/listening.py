"""Provide a service that listens on a local port, for tests over real HTTP."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from theodolite.api.app import create_app
from theodolite.api.connections import DeadlineProtocol
from theodolite.settings import Settings


@contextmanager
def served(store: object, *, tokenless: bool = True, **settings: Any) -> Iterator[str]:
    """Serve a store over real HTTP from a thread, and yield the URL."""
    app = create_app(Settings(store=str(store), **settings), open_without_tokens=tokenless)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none", http=DeadlineProtocol))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
