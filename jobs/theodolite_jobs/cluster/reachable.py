"""Check that a cluster listens at its address, before anything else takes seconds."""

import socket

from theodolite.errors import ClusterError

_SECONDS = 5


def check_reachable(cluster: str, address: str | None, how: str) -> None:
    """Raise ClusterError if no server listens at HOST:PORT; an address of another form is not checked.

    Args:
        cluster: what should listen, such as `Dask scheduler`.
        address: its address, also with a protocol (tcp://HOST:PORT); None is no cluster.
        how: the option that sets the address.
    """
    host, separator, port = (address or "").rpartition("://")[2].rpartition(":")
    if not separator or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"cannot reach a {cluster} at {address}: {error}; start it, or correct {how}") from error
