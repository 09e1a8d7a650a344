"""Waiting for a submitted survey, and showing how far it is: from Python, in a notebook, and at the command line."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console

from theodolite.errors import JobError
from theodolite.progress_bars import progress_bars

_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_LOST = 30.0
"""How long a job may look lost before nobody waits for it any more: a cluster's dashboard may start again."""


def wait_for_end(look: Callable[[], Mapping[str, Any]], timeout: float | None = None) -> Mapping[str, Any]:
    """Return a job once it has succeeded, showing how far it is until then.

    Args:
        look: returns the job as it is now: `id`, `state`, `reason`, and `progress` by prompt set.
        timeout: seconds; None waits for as long as it takes. The job goes on either way.

    Raises:
        JobError: the job failed, was stopped or has looked lost for half a minute, with the reason; or time is over.
    """
    end = time.monotonic() + (float("inf") if timeout is None else timeout)
    known = time.monotonic()
    with _watching() as show:
        while True:
            now = look()
            show(now)
            if now["state"] in ("queued", "running"):
                known = time.monotonic()
            elif now["state"] != "lost" or time.monotonic() - known > _SECONDS_LOST:
                break
            left = end - time.monotonic()
            if left <= 0 and now["state"] == "lost":
                break
            if left <= 0:
                raise JobError(f"job {now['id'][:12]}… is still {now['state']} after {timeout:g} s; wait again")
            time.sleep(min(left, _SECONDS_BETWEEN_LOOKS))
    if now["state"] != "succeeded":
        said = {"failed": "failed", "stopped": "was stopped", "lost": "is lost"}[now["state"]]
        reason = now["reason"] or "its logs may say why"
        raise JobError(f"job {now['id'][:12]}… {said}: {reason}; submitting the same spec again goes on")
    return now


def said_progress(now: Mapping[str, Any]) -> str:
    """Return how far a job is in words: prompts committed of all, by set."""
    return ", ".join(f"{name} {at['done']}/{at['total']}" for name, at in now["progress"].items())


@contextmanager
def _watching() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give what shows a job's progress: bars on a terminal or in a notebook, plain lines elsewhere, on stderr."""
    console = Console(stderr=True)
    if not (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets"))):
        said: list[str] = []

        def line(now: Mapping[str, Any]) -> None:
            done = said_progress(now)
            said.append(f"{now['state']}: {done}" if done else now["state"])
            if said[-1:] != said[-2:-1]:
                print(said[-1], file=sys.stderr, flush=True)

        yield line
        return
    with progress_bars(console) as bars:
        state = bars.add_task("", total=None)
        tasks: dict[str, Any] = {}

        def bar(now: Mapping[str, Any]) -> None:
            bars.update(state, description=now["state"], visible=not now["progress"])
            for name, at in now["progress"].items():
                if name not in tasks:
                    tasks[name] = bars.add_task(name)
                bars.update(tasks[name], completed=at["done"], total=at["total"])

        yield bar
