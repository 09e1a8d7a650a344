"""Identify processes, so that a process is never mistaken for another one that got its number later."""

import os
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_STATE, _START = 0, 19
"""Indices of the state and of the start time in /proc/PID/stat, after the name of the program."""


@dataclass(frozen=True)
class Process:
    """A process: its machine, its number there, and the time at which it started."""

    machine: str  # the boot of the machine, and the namespace of its numbers; empty if the system does not tell
    pid: int
    started: int  # clock ticks since the boot


def process_of(pid: int) -> Process | None:
    """Return the running process with this number; None if there is none, or if this system does not tell its start.

    A process that has ended, and whose parent has not noticed, does not run. Only Linux tells the start exactly.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if fields[_STATE] in ("Z", "X"):
            return None
        return Process(_machine(), pid, int(fields[_START]))
    except (OSError, IndexError, ValueError):
        return None


def has_ended(process: Process) -> bool | None:
    """Return whether a process has ended; None if this process cannot know it, for example from another machine."""
    if not process.machine or process.machine != _machine():
        return None
    try:
        os.kill(process.pid, 0)
    except (ProcessLookupError, OverflowError):  # a damaged record may hold any number
        return True
    except OSError:  # it is another user's, and the system may hide its files
        if not Path(f"/proc/{process.pid}/stat").exists():
            return None
    return process_of(process.pid) != process


def _machine() -> str:
    """Return a text that differs between machines, boots and containers; empty if the system has none."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
