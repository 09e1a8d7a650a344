"""Run the service on an address, after checking that the address is safe."""

import gc
import socket
import sys
from contextlib import suppress

from theodolite.errors import SpecError
from theodolite.settings import Settings

BLOCKED = ("torch", "ray", "dask", "pyarrow")
"""Modules that the service must not import. xarray imports Dask and pandas imports pyarrow if they are installed, which
costs 50 MB each. `encoding.py` imports pyarrow for the first response as Arrow."""

SWITCH_SECONDS = 2e-4
"""Interval after which Python switches threads; its default of 5 ms would delay each response."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until interrupted.

    Raises:
        SpecError: the host is not loopback and the store has no token, or the port is in use.
        StoreError: the store cannot be reached.
    """
    block_imports()
    import uvicorn

    from theodolite.api.access import LOOPBACK
    from theodolite.api.access_log import log_to_stderr
    from theodolite.api.app import create_app
    from theodolite.api.connections import DeadlineProtocol, connection_limit
    from theodolite.api.credentials import list_credentials
    from theodolite.store.runs import list_run_ids

    # A service with more host names is behind a proxy, so other machines can reach it.
    on_loopback = (f"[{host}]" if ":" in host else host) in LOOPBACK and not settings.hosts
    if not on_loopback and not list_credentials(settings.store):
        raise SpecError(
            f"--host: other machines can reach {host} or the names in THEODOLITE_HOSTS, and the store has no token; "
            "create one with `theodolite token create`, or serve on 127.0.0.1 without THEODOLITE_HOSTS"
        )
    list_run_ids(settings.store)
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = _listen(host, port)
    url = f"http://{host}:{listener.getsockname()[1]}"
    if settings.access_log:
        log_to_stderr()
    app = create_app(settings, open_without_tokens=on_loopback)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # uvicorn's log would contain queries
        server_header=False,
        forwarded_allow_ips=[str(network) for network in settings.proxies],
        timeout_graceful_shutdown=5,
        http=DeadlineProtocol,
        limit_concurrency=connection_limit(),
    )
    gc.collect()
    gc.freeze()  # imported objects stay alive; collecting them again would delay responses
    print(f"Theodolite listens at {url} and serves {settings.store}; press Ctrl-C to stop", flush=True)
    server = uvicorn.Server(config)
    app.state.is_stopping = lambda: server.should_exit  # uvicorn waits for the streams of events
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after the shutdown
        server.run(sockets=[listener])


def block_imports() -> None:
    """Make the import of each blocked module raise ImportError; call this before anything imports xarray."""
    for name in BLOCKED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it a body waits 40 ms for the header's ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SpecError(f"--port: cannot listen on {host}:{port}: {error.strerror}; choose another port") from error
    listener.listen(2048)  # connections wait until the event loop runs, instead of being refused
    return listener
