"""How far a run has come, on standard error."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _TokensPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} tokens/s")


@contextlib.contextmanager
def token_progress(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar with tokens per second and the time left; yields what advances it by a number of tokens."""
    if not shown:
        yield lambda tokens: None
        return
    bar = Progress(
        TextColumn("encoding"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        _TokensPerSecond(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task("encoding", total=total)
        yield lambda tokens: bar.advance(task, tokens)
