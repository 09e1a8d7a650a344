"""Wait for a survey job and show its progress: in Python, in a notebook, and on the command line."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from theodolite.errors import JobError


def wait_for_end(
    current: Callable[[], Mapping[str, Any]],
    timeout: float | None = None,
    *,
    poll_seconds: float = 2.0,
    lost_seconds: float = 30.0,
) -> Mapping[str, Any]:
    """Return a survey job after it has succeeded; show its progress until then.

    `current` returns the current `id`, `state`, `reason`, and `progress` by prompt set, and is called every
    `poll_seconds`. `timeout` is in seconds, None is no limit; the survey job continues after it. The job may look lost
    for `lost_seconds`, because a cluster's dashboard may restart.

    Raises:
        JobError: the survey job failed, was stopped or has been lost for `lost_seconds`; or the time is over.
    """
    end = time.monotonic() + (float("inf") if timeout is None else timeout)
    known = time.monotonic()
    with _progress_output() as show:
        while True:
            now = current()
            show(now)
            if now["state"] in ("queued", "running"):
                known = time.monotonic()
            elif now["state"] != "lost" or time.monotonic() - known > lost_seconds:
                break
            remaining = end - time.monotonic()
            if remaining <= 0 and now["state"] == "lost":
                break
            if remaining <= 0:
                raise JobError(f"survey job {now['id'][:12]}… is still {now['state']} after {timeout:g} s; wait again")
            time.sleep(min(remaining, poll_seconds))
    if now["state"] != "succeeded":
        outcome = {"failed": "failed", "stopped": "was stopped", "lost": "is lost"}[now["state"]]
        reason = now["reason"] or "see its log"
        raise JobError(f"survey job {now['id'][:12]}… {outcome}: {reason}; submit the same spec again to resume")
    return now


def describe_progress(now: Mapping[str, Any]) -> str:
    """Return the committed and total prompts of each set, such as `harmful 8/16, harmless 0/16`."""
    return ", ".join(f"{name} {at['done']}/{at['total']}" for name, at in now["progress"].items())


def progress_bars(console: Console, *columns: ProgressColumn) -> Progress:
    """Return bars with a description, the finished and total steps, further `columns`, and the remaining time."""
    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(), MofNCompleteColumn(), *columns, TimeRemainingColumn(), console=console)


@contextmanager
def _progress_output() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that shows a survey job's progress on stderr, as bars or as plain lines."""
    console = Console(stderr=True)
    if not (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets"))):
        lines: list[str] = []

        def line(now: Mapping[str, Any]) -> None:
            done = describe_progress(now)
            lines.append(f"{now['state']}: {done}" if done else now["state"])
            if lines[-1:] != lines[-2:-1]:
                print(lines[-1], file=sys.stderr, flush=True)

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
