"""Check whether the service may run on an address, and run it; heavy modules are imported after the checks."""

import gc
import socket
import sys
from contextlib import suppress

from theodolite.errors import SpecError
from theodolite.settings import Settings

BLOCKED = ("torch", "ray", "dask", "pyarrow")
"""Modules whose import is blocked. xarray imports Dask and pandas imports pyarrow if they are installed: 50 MB each,
which the service does not use. An answer as Arrow imports pyarrow when it is requested (`encoding.py`)."""

SWITCH_SECONDS = 2e-4
"""How long a thread holds the interpreter while others wait; Python's default of 5 ms would delay each answer."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until interrupted.

    Raises:
        SpecError: the host is not loopback and there is no token, or the port is taken.
        StoreError: the store cannot be reached.
    """
    block_imports()
    import uvicorn

    from theodolite.api.app import create_app
    from theodolite.api.credentials import list_credentials
    from theodolite.api.guards import LOOPBACK
    from theodolite.store.runs import list_run_ids

    # A service with further host names is behind a proxy, and so others can reach it.
    on_loopback = (f"[{host}]" if ":" in host else host) in LOOPBACK and not settings.hosts
    if not on_loopback and not list_credentials(settings.store):
        raise SpecError(
            f"--host: {host} can be reached by others, or by THEODOLITE_HOSTS, and the store has no token; make one "
            "with `theodolite token create`, or serve on 127.0.0.1 without other names"
        )
    list_run_ids(settings.store)
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = _listen(host, port)
    place = f"http://{host}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        create_app(settings, open_without_tokens=on_loopback),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    gc.collect()
    gc.freeze()  # imported objects stay alive; collecting them again would delay answers
    print(f"Theodolite answers at {place} from {settings.store}; Ctrl-C ends it", flush=True)
    with suppress(KeyboardInterrupt):  # which uvicorn raises again once all is closed
        uvicorn.Server(config).run(sockets=[listener])


def block_imports() -> None:
    """Make the import of each blocked module an ImportError; call it before xarray is imported."""
    for name in BLOCKED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it a body waits 40 ms for the head's ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SpecError(f"--port: cannot listen on {host}:{port}: {error.strerror}; choose another") from error
    listener.listen(2048)  # connections wait until the event loop runs, and are not refused
    return listener
