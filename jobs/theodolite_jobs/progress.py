"""Show the progress of a survey: bars with rate and remaining time on a terminal and in notebooks, else plain lines.

Progress goes to standard error; standard output is for results.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from rich.console import Console as RichConsole
from rich.progress import Progress, TaskID, TextColumn

from theodolite.submission.waiting import progress_bars


class Bar:
    """Progress of one stage as plain lines, at most one line every few seconds."""

    SECONDS_BETWEEN_LINES = 5.0

    def __init__(self, title: str, total: int | None, done: int, unit: str) -> None:
        """Start at `done` of `total` steps; None is an unknown total."""
        self.title, self.total, self.done, self.unit = title, total, done, unit
        self._start, self._started_at = done, time.monotonic()
        self._last_line = time.monotonic()

    def advance(self, steps: int) -> None:
        """Add finished steps."""
        self.done += steps
        self._show()

    def step_to(self, part: str, done: int, total: int | None, unit: str) -> None:
        """Show the progress of one part of a stage; a new part restarts the rate."""
        if part != self.title:
            self.title, self.unit, self._start, self._started_at = part, unit, done, time.monotonic()
        self.done, self.total = done, total
        self._show()

    def speed(self) -> float:
        """Return the steps per second since the start."""
        return (self.done - self._start) / max(time.monotonic() - self._started_at, 1e-9)

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._last_line < self.SECONDS_BETWEEN_LINES and self.done != self.total:
            return
        self._last_line = now
        text = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"
        self._print(f"{self.title}: {text} {self.unit}{self._rate()}")

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def _rate(self) -> str:
        """Return the rate and the remaining time of a known total, from the second step of a part on."""
        speed = self.speed()
        if self.total is None or speed == 0:
            return ""
        return f", {speed:.1f} {self.unit}/s, {max(0, self.total - self.done) / speed:.0f} s left"


class _TerminalBar(Bar):
    """Progress of one stage as a bar on a terminal."""

    def __init__(self, progress: Progress, title: str, total: int | None, done: int, unit: str) -> None:
        super().__init__(title, total, done, unit)
        self._progress = progress
        self._task: TaskID = progress.add_task(title, total=total, completed=done, unit=unit, rate="")

    def _show(self) -> None:
        rate = "" if self.total is None else f"{self.speed():.1f} {self.unit}/s"
        (task,) = self._progress.tasks
        task.total = self.total  # `update` keeps an earlier total if the new one is unknown
        self._progress.update(self._task, description=self.title, completed=self.done, unit=self.unit, rate=rate)


class _NotebookBar(Bar):
    """Progress of one stage as a bar under the cell of a notebook."""

    SECONDS_BETWEEN_LINES = 0.5

    def __init__(self, title: str, total: int | None, done: int, unit: str) -> None:
        super().__init__(title, total, done, unit)
        from IPython.display import DisplayHandle  # a notebook has it

        self._handle = DisplayHandle()
        self._handle.display({"text/plain": title}, raw=True)

    def _print(self, line: str) -> None:
        of = "" if self.total is None else f' value="{self.done}" max="{max(self.total, 1)}"'
        self._handle.update({"text/plain": line, "text/html": f"<progress{of}></progress> {escape(line)}"}, raw=True)


class Console:
    """Output of a survey to a person, on standard error."""

    def __init__(self) -> None:
        self._rich = RichConsole(stderr=True)
        self._is_notebook = self._rich.is_jupyter
        if self._is_notebook:
            self._rich = RichConsole(stderr=True, force_jupyter=False)  # plain lines stand close together

    def say(self, text: str) -> None:
        """Print a line."""
        self._rich.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int | None = None, done: int = 0, unit: str = "shards") -> Iterator[Bar]:
        """Show the progress of a stage until the context ends."""
        if self._is_notebook:
            yield _NotebookBar(title, total, done, unit)
            return
        if not self._rich.is_terminal:
            yield Bar(title, total, done, unit)
            return
        with progress_bars(
            self._rich, TextColumn("{task.fields[unit]}"), TextColumn("{task.fields[rate]}")
        ) as progress:
            yield _TerminalBar(progress, title, total, done, unit)
