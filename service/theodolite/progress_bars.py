"""Progress bars on a terminal or in a notebook, for surveys and survey jobs."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bars(console: Console, *columns: ProgressColumn) -> Progress:
    """Return bars with a description, the finished and total steps, further `columns`, and the remaining time."""
    description = TextColumn("{task.description}", markup=False)
    return Progress(description, BarColumn(), MofNCompleteColumn(), *columns, TimeRemainingColumn(), console=console)
