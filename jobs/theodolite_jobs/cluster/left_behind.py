"""Kill the processes of Ray that a driver left on this machine when it died.

Linux kills the servers of Ray together with the driver that started them. What the servers have started lives on:
agents for a minute, and a worker that is starting for half a minute. Each of these processes has inherited a variable
with the number and the start time of its driver. So it is found without its name, and also if Ray started it later.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from theodolite.processes import Process, has_ended, process_of

_VARIABLE = "THEODOLITE_RAY_DRIVER"

_KEEP_ENVIRONMENT = "SPT_NOENV"
"""With this variable, Ray's processes do not overwrite what /proc shows of their environment with their long titles."""


@contextmanager
def marked() -> Iterator[None]:
    """Let the processes that start in this context, and those that they start later, inherit who their driver is."""
    own = process_of(os.getpid())
    if own is None:  # this system does not tell the start of a process
        yield
        return
    variables = {_VARIABLE: json.dumps(asdict(own)), _KEEP_ENVIRONMENT: "1"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            os.environ.update({} if value is None else {name: value})


def kill_left_behind() -> int:
    """Kill the processes of this user whose driver has died, and return their number; only Linux can tell them."""
    n_killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            n_killed += folder.stat().st_uid == os.getuid() and _killed_if_left(int(folder.name))
    return n_killed


def _killed_if_left(pid: int) -> bool:
    """Kill a process if its driver has died, and return whether it was killed.

    Raises:
        OSError: the process has ended.
    """
    descriptor = os.pidfd_open(pid)  # unlike the number, it can never mean another process
    try:
        driver = _driver(Path(f"/proc/{pid}/environ").read_bytes())
        if driver is None or not has_ended(driver):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    finally:
        os.close(descriptor)


def _driver(environment: bytes) -> Process | None:
    """Return the driver that a process has inherited; None if its environment names none."""
    for variable in environment.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == _VARIABLE.encode():
            with suppress(ValueError, KeyError, TypeError):
                fields = json.loads(value)
                return Process(str(fields["machine"]), int(fields["pid"]), int(fields["started"]))
    return None
