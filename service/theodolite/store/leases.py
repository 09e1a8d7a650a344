"""The leases of the drivers that work on a run: nobody removes a run that is in use.

    leases/RUN/DRIVER.json     one object for each driver, which writes it again every few seconds until it ends

They lie beside the runs: the objects of a run, their checksums and its id never change. A lease is no lock: several
drivers may work on one run at the same time, and each of them has its own lease.

The clocks of hosts may differ. So the age of a lease is the difference of two times that the store sets: that of the
lease, and that of an object which the reader has just written.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from socket import gethostname
from threading import Event, Thread
from time import sleep

from theodolite.errors import RunInUseError, StoreError
from theodolite.processes import Process, has_ended, process_of
from theodolite.store.objects import delete, get, join, keys, open_location, put, sweep_staged, written
from theodolite.store.pieces import fields_of, record

_FOLDER = "leases"

RENEWAL_SECONDS = 10.0
"""Time after which a driver writes its lease again."""

EXPIRY_SECONDS = 60.0
"""Age at which a lease has expired: the driver has missed several renewals."""

REPLICA_SECONDS = 5.0
"""Time in which the replicas of a driver that died on this machine end; without load they need up to two seconds."""


@dataclass(frozen=True)
class Lease:
    """The lease of a driver, as it is stored."""

    key: str
    host: str
    process: Process
    age: float  # seconds since its last renewal

    @property
    def driver(self) -> str:
        """The driver in a sentence."""
        return f"the process {self.process.pid} on {self.host}" if self.host else "a process that is not known"

    @property
    def is_live(self) -> bool:
        """Whether the driver still works on the run, as far as this process can know."""
        ended = has_ended(self.process)
        return self.age < EXPIRY_SECONDS if ended is None else not ended


@contextmanager
def held_lease(store: str, run_id: str) -> Iterator[None]:
    """Hold a lease of a run until the context ends, and remove the leases of drivers that have died.

    A store that cannot be written raises no error: what the driver writes next says more.
    """
    location, key = open_location(store), f"{_folder(run_id)}/{uuid.uuid4().hex[:12]}.json"
    process = process_of(os.getpid()) or Process("", os.getpid(), 0)
    content = record(key, {"host": gethostname(), "process": asdict(process)})
    ended = Event()

    def renew() -> None:
        while not ended.wait(RENEWAL_SECONDS):
            with suppress(StoreError):
                put(location, key, content)

    with suppress(StoreError):
        put(location, key, content)
        drop_dead_leases(store, run_id)
    thread = Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(RENEWAL_SECONDS)  # a store that does not respond must not keep the driver
        with suppress(StoreError):
            delete(location, [key])


def refuse_in_use(store: str, run_id: str) -> None:
    """Raise RunInUseError if a driver works on a run."""
    live = [lease for lease in _leases(store, run_id) if lease.is_live]
    if live:
        latest = min(live, key=lambda lease: lease.age)
        raise RunInUseError(
            f"{run_id} is in use: {latest.driver} works on it, and renewed its lease "
            f"{max(0.0, latest.age):.0f} s ago; stop this process, or wait until it ends (if it has died on another "
            f"host, its lease, {latest.key}, expires after {EXPIRY_SECONDS:.0f} s)"
        )


def wait_for_replicas(store: str, run_id: str) -> None:
    """Wait some seconds if a driver of a run that is not in use has just died: its replicas may still write."""
    if any(lease.age < EXPIRY_SECONDS for lease in _leases(store, run_id)):
        sleep(REPLICA_SECONDS)


def drop_dead_leases(store: str, run_id: str) -> None:
    """Remove the leases of drivers that no longer work on a run, and what died while it was written."""
    delete(open_location(store), [lease.key for lease in _leases(store, run_id) if not lease.is_live])
    sweep_staged(join(store, _folder(run_id)), EXPIRY_SECONDS)


def _leases(store: str, run_id: str) -> list[Lease]:
    location = open_location(store)
    stored = [key for key in keys(location, _folder(run_id)) if key.endswith(".json")]
    if not stored:
        return []
    probe = f"{_folder(run_id)}/{uuid.uuid4().hex[:12]}.now"
    put(location, probe, b"")
    try:
        now = written(location, probe)
    finally:
        delete(location, [probe])
    found = []
    for key in stored:
        content, renewed = get(location, key), written(location, key)
        if content is not None and renewed is not None and now is not None:  # None: the driver has just ended
            found.append(Lease(key, *_parsed(key, content), (now - renewed).total_seconds()))
    return found


def _parsed(key: str, content: bytes) -> tuple[str, Process]:
    """Return the host and the process of a lease; of a damaged one only its age counts."""
    fields = fields_of(key, content)
    return ("", Process("", 0, 0)) if fields is None else (fields["host"], Process(**fields["process"]))


def _folder(run_id: str) -> str:
    return f"{_FOLDER}/{run_id}"
