"""Reach this machine directly, and not through the proxy of a network."""

import os

_LOCAL = ("localhost", "127.0.0.1", "::1")


def reach_local_addresses_directly() -> None:
    """Add the local addresses to NO_PROXY, which all HTTP clients of this process and of its children read.

    A proxy (`http_proxy`, `HTTPS_PROXY`, `ALL_PROXY`) would look for a local service, bucket or cluster on its own
    machine. A value of * already excludes every address, and only alone.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return
    excluded = [os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    if "*" in excluded:
        return
    names = dict.fromkeys(name.strip() for name in (*",".join(excluded).split(","), *_LOCAL) if name.strip())
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(names)
