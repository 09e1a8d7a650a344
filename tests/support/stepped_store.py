"""A store in memory whose operations wait for the test: each may succeed, fail, lose its answer, or end its writer."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import obstore
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

SECONDS = 60

SUCCEED, REFUSE, LOSE_ANSWER, REPEAT, CRASH_BEFORE, CRASH_AFTER = OUTCOMES = (
    "succeed",
    "refuse",  # nothing happens, and the writer gets an error
    "lose answer",  # it happens, and the writer gets an error
    "repeat",  # it happens twice, as if the client had lost the first answer
    "crash before",
    "crash after",
)


class _Crash(BaseException):
    """Ends a writer as if its process were killed."""


class Writer:
    """A thread that stops before each operation of the store until `step` tells it the outcome.

    Attributes:
        operation: the name and the key of the operation that waits, or None at the end.
        result: what the function returned.
        error: what it raised; None for a crash too.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._outcomes: SimpleQueue[str] = SimpleQueue()
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self.operation: tuple[str, str] | None = ("start", "")
        self.result: Any = None
        self.error: Exception | None = None
        self.crashed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._stopped.get(timeout=SECONDS)

    def step(self, outcome: str) -> None:
        """Let the waiting operation have this outcome, and wait for the next operation or the end."""
        self._outcomes.put(outcome)
        self._stopped.get(timeout=SECONDS)

    def finish(self) -> None:
        """Let all remaining operations succeed."""
        while self.operation is not None:
            self.step(SUCCEED)

    def _run(self) -> None:
        _writers[threading.get_ident()] = self
        try:
            self.result = self._function()
        except _Crash:
            self.crashed = True
        except Exception as error:
            self.error = error
        del _writers[threading.get_ident()]  # another thread may get the same number
        self.operation = None
        self._stopped.put(None)

    def wait(self, name: str, key: str, perform: Callable[[], Any]) -> Any:
        """Perform an operation of this writer as the test says."""
        self.operation = name, key
        self._stopped.put(None)
        outcome = self._outcomes.get(timeout=SECONDS)
        if outcome == CRASH_BEFORE:
            raise _Crash
        if outcome == REFUSE:
            raise GenericError("503 Service Unavailable")
        result = perform()
        if outcome == CRASH_AFTER:
            raise _Crash
        if outcome == LOSE_ANSWER:
            raise GenericError("500 Internal Server Error")
        return perform() if outcome == REPEAT else result


_writers: dict[int, Writer] = {}


def stepped(name: str, key: str, perform: Callable[[], Any]) -> Any:
    """Perform an operation, at once or, in the thread of a `Writer`, as the test says."""
    writer = _writers.get(threading.get_ident())
    return perform() if writer is None else writer.wait(name, key, perform)


class SteppedObstore:
    """The functions of obstore, which wait where a `Writer` calls them."""

    def __init__(self) -> None:
        self.location = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        function = getattr(obstore, name)

        def call(location: Any, *arguments: Any, **options: Any) -> Any:
            def perform() -> Any:
                return function(location, *arguments, **options)

            return stepped(name, str(arguments[0] if arguments else ""), perform)

        return call
