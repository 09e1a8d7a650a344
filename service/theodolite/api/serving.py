"""Running the service, after looking whether it may run there. Imports what is heavy only then."""

import gc
import socket
import sys
from contextlib import suppress

from theodolite.errors import SpecError
from theodolite.settings import Settings

KEPT_OUT = ("torch", "ray", "dask", "pyarrow")
"""What must not be loaded. xarray imports Dask, and pandas pyarrow, wherever they are installed: 50 MB each, for no use
here. Who asks for Arrow gets pyarrow then (`encoding.py`)."""

SWITCH_SECONDS = 2e-4
"""How long a thread holds the interpreter while others wait; by default 5 ms, which each answer would wait for."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until interrupted.

    Raises:
        SpecError: the host is not loopback and there is no token, or somebody else listens there.
        StoreError: the store cannot be reached.
    """
    keep_out()
    import uvicorn

    from theodolite.api.app import create_app
    from theodolite.api.credentials import list_tokens
    from theodolite.api.guards import LOOPBACK
    from theodolite.store.runs import list_run_ids

    # A service that is called by other names is reached through a proxy, and so by others.
    on_loopback = (f"[{host}]" if ":" in host else host) in LOOPBACK and not settings.hosts
    if not on_loopback and not list_tokens(settings.store):
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
    gc.freeze()  # what importing made stays: looking through it again would hold up answers
    print(f"Theodolite answers at {place} from {settings.store}; Ctrl-C ends it", flush=True)
    with suppress(KeyboardInterrupt):  # which uvicorn raises again once all is closed
        uvicorn.Server(config).run(sockets=[listener])


def keep_out() -> None:
    """Make importing what the service must not load an ImportError.

    It must come before xarray, which looks once what is installed.
    """
    for name in KEPT_OUT:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the protocol is named; else a body waits 40 ms behind its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SpecError(f"--port: cannot listen on {host}:{port}: {error.strerror}; choose another") from error
    listener.listen(2048)  # so that who comes before the loop runs waits, and is not refused
    return listener
