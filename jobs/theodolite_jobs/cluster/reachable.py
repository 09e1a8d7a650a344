"""Check that a cluster listens at its address, before anything else takes seconds."""

import socket

from theodolite.errors import ClusterError

_SECONDS = 5


def check_reachable(cluster: str, address: str | None, how: str) -> None:
    """Raise ClusterError if no server listens at HOST:PORT.

    Args:
        cluster: what should listen, such as `Dask scheduler`.
        address: its address, also with a protocol (tcp://HOST:PORT); None is no cluster, and Ray itself finds `auto`.
        how: the option that sets the address.
    """
    if address is None or address in ("auto", "local"):
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(f"{how}: given {address!r}; allowed: the address of a {cluster}, HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"cannot reach a {cluster} at {address}: {error}; start it, or correct {how}") from error
