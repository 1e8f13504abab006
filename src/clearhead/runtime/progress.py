"""Progress bar on standard error."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from clearhead.data.corpus import Corpus


class _Texts(ProgressColumn):
    def render(self, task: Task) -> Text:
        texts = task.fields["texts"]
        return Text(f"{texts:,} texts" if texts else "")


class _TokensPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        seconds, tokens = task.elapsed or 0.0, task.fields["tokens"]
        return Text(f"{tokens / seconds:,.0f} tokens/s" if seconds and tokens else "")


class BatchProgress:
    """Turn finished batches into steps of a progress bar that counts bytes.

    Texts are read before they are computed, and in another order. Each text of a batch therefore counts an equal share
    of the bytes that were read and not yet reported.

    Args:
        source: the texts.
        on_step: called with the bytes, tokens and texts of each batch.
    """

    def __init__(self, source: Corpus, on_step: Callable[[int, int, int], None]) -> None:
        self._source, self._on_step = source, on_step
        self._bytes, self._texts = 0, 0

    def on_batch(self, texts: int, tokens: int) -> None:
        """Report a batch with this number of texts and tokens."""
        share = texts / max(texts, self._source.texts_read - self._texts, 1)
        step = round(share * (self._source.bytes_read - self._bytes))
        self._on_step(step, tokens, texts)
        self._bytes, self._texts = self._bytes + step, self._texts + texts

    def skip(self, texts: int) -> None:
        """Count the texts that an earlier run has finished, before the first batch."""
        self._texts += texts

    def finish(self) -> None:
        """Report the rest: bytes without texts, and texts without tokens, which are in no batch."""
        self._on_step(self._source.bytes_read - self._bytes, 0, self._source.texts_read - self._texts)
        self._bytes, self._texts = self._source.bytes_read, self._source.texts_read


@contextlib.contextmanager
def token_progress(total: int | None, enabled: bool, *, description: str = "encoding") -> Iterator[Callable[..., None]]:
    """Show a progress bar with the number of texts, tokens per second and the remaining time.

    Args:
        total: amount of work, in any unit; None if unknown, as for standard input.
        enabled: whether to show the bar.
        description: text before the bar.

    Yields:
        A function to call with the units, tokens and, optionally, texts computed since the last call.
    """
    if not enabled:
        yield lambda done, tokens, texts=0: None
        return
    bar = Progress(
        TextColumn(description),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%" if total is not None else ""),
        _Texts(),
        _TokensPerSecond(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(description, total=total, tokens=0, texts=0)

        def on_step(done: int, tokens: int, texts: int = 0) -> None:
            fields = bar.tasks[0].fields
            bar.update(task, advance=done, tokens=fields["tokens"] + tokens, texts=fields["texts"] + texts)

        yield on_step
