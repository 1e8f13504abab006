"""How far a run has come, on standard error."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _TokensPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        seconds = task.elapsed or 0.0
        return Text(f"{task.fields['tokens'] / seconds:,.0f} tokens/s" if seconds else "")


@contextlib.contextmanager
def token_progress(total: int | None, shown: bool, *, doing: str = "encoding") -> Iterator[Callable[[int, int], None]]:
    """A bar with tokens per second and the time left.

    Args:
        total: the whole work in any unit; None where nobody knows, as for standard input.
        shown: whether there is a bar at all.
        doing: what it says that is done.

    Yields:
        What is called with the units done and the tokens computed since the last call.
    """
    if not shown:
        yield lambda done, tokens: None
        return
    bar = Progress(
        TextColumn(doing),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%" if total is not None else ""),
        _TokensPerSecond(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(doing, total=total, tokens=0)

        def advance(done: int, tokens: int) -> None:
            bar.update(task, advance=done, tokens=bar.tasks[0].fields["tokens"] + tokens)

        yield advance
