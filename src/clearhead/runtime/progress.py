"""Progress bar on standard error."""

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
def token_progress(
    total: int | None, enabled: bool, *, description: str = "encoding"
) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar with tokens per second and the remaining time.

    Args:
        total: amount of work, in any unit; None if unknown, as for standard input.
        enabled: whether to show the bar.
        description: text before the bar.

    Yields:
        A function to call with the units and the tokens computed since the last call.
    """
    if not enabled:
        yield lambda done, tokens: None
        return
    bar = Progress(
        TextColumn(description),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%" if total is not None else ""),
        _TokensPerSecond(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(description, total=total, tokens=0)

        def on_step(done: int, tokens: int) -> None:
            bar.update(task, advance=done, tokens=bar.tasks[0].fields["tokens"] + tokens)

        yield on_step
