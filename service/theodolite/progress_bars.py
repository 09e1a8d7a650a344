"""The moving bars that a terminal shows while something runs; surveys and submitted jobs share them."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bars(console: Console, *columns: ProgressColumn) -> Progress:
    """Return bars with a description, how many of all are done, more `columns`, and the time left."""
    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(), MofNCompleteColumn(), *columns, TimeRemainingColumn(), console=console)
