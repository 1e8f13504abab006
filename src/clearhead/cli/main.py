"""Entry point of the command `clearhead`: its subcommands, and errors as one line."""

import contextlib
import errno
import inspect
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from clearhead._version import __version__
from clearhead.choices import did_you_mean
from clearhead.cli.evaluate import evaluate
from clearhead.cli.inspection.explore import explore
from clearhead.cli.inspection.lint import lint
from clearhead.cli.inspection.trace import trace
from clearhead.cli.inspection.verify import verify
from clearhead.cli.inspection.view import view
from clearhead.cli.models.benchmark import benchmark
from clearhead.cli.models.convert import convert
from clearhead.cli.models.export import export
from clearhead.cli.models.quantize import quantize
from clearhead.cli.models.serve import serve
from clearhead.cli.models.shortlist import shortlist
from clearhead.cli.signals import orderly_exit
from clearhead.cli.text.answer import answer
from clearhead.cli.text.classify import classify
from clearhead.cli.text.encode import encode
from clearhead.cli.text.index import index
from clearhead.cli.text.rerank import rerank
from clearhead.cli.text.search import search
from clearhead.cli.text.summarize import summarize
from clearhead.cli.text.translate import translate
from clearhead.cli.training.ablate import ablate
from clearhead.cli.training.distill import distill
from clearhead.cli.training.tokenizer import tokenizer
from clearhead.cli.training.train import train
from clearhead.data.tables import raise_field_limit
from clearhead.runtime.process import tune_process

_RENAMED_OPTIONS = {
    ("classification", "--text-column"): "--column",
    ("serve", "--use"): "--task",
    ("summarization", "--document-column"): "--column",
    ("verify", "--against"): "--reference",
    ("view", "--whole"): "--full-maps",
}
"""New name of each option that was renamed, by command and old name."""


class UsageError(ValueError):
    """A wrong option or argument."""


class _Commands(TyperGroup):
    """Report a wrong option or argument in one line, like every other error. typer would print a box."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _join_help_lines(self)

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _as_one_line():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _as_one_line():
            return super().invoke(ctx)


def _join_help_lines(command: Any) -> None:
    """Join the lines of each paragraph of the help, which typer would otherwise break as in the docstring."""
    if command.help:
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help))
    for subcommand in getattr(command, "commands", {}).values():
        _join_help_lines(subcommand)


@contextlib.contextmanager
def _as_one_line() -> Iterator[None]:
    """Convert typer's errors in the block to a `UsageError`, whose message is one line."""
    try:
        yield
    except Exception as error:
        # typer raises errors of click, or of its own copy of click, depending on the version
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "clearhead")
        option = getattr(error, "option_name", "")
        renamed = _RENAMED_OPTIONS.get((command.rpartition(" ")[2], option))
        if renamed is not None:
            raise UsageError(f"{option} was renamed to {renamed}") from None
        message = error.format_message().replace("Value error, ", "").rstrip(".")
        choice = re.search(r"'([^']*)' is not one of (.*)", message)
        hint = did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2])) if choice else ""
        listed = "commands" if "such command" in message else "options"
        end = " " if message.endswith("?") else "; "
        raise UsageError(f"{message}{hint}{end}{command} -h lists the {listed}") from None


app = typer.Typer(
    name="clearhead",
    cls=_Commands,
    help="Run, train, serve and inspect Transformer encoders and encoder–decoders.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(encode)
app.command()(classify)
app.command()(translate)
app.command()(summarize)
app.command()(rerank)
app.command()(index)
app.command()(search)
app.command()(answer)
app.command()(train)
app.command()(distill)
app.command()(ablate)
app.command()(serve)
app.command()(trace)
app.command()(view)
app.command()(explore)
app.command()(lint)
app.command()(verify)
app.add_typer(evaluate, name="evaluate")
app.add_typer(tokenizer, name="tokenizer")
app.add_typer(benchmark, name="benchmark")
app.command()(convert)
app.command()(export)
app.command()(quantize)
app.command()(shortlist)


def _print_version(requested: bool) -> bool:
    if requested:
        typer.echo(f"clearhead {__version__}")
        raise typer.Exit
    return requested


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line.

    An error that the user can fix is printed as one line on standard error. The exit status is 2 for a wrong option or
    argument, and 1 for every other error.
    """
    if sys.stderr is None:  # it is closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    logging.basicConfig(level=logging.WARNING, format="clearhead: %(message)s")
    raise_field_limit()
    tune_process()
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of other libraries; clearhead shows its own
    _wrap_standard_output()
    # torch.load warns before it rejects the file, and the error that follows explains more
    warnings.filterwarnings("ignore", "Detected pickle protocol|'torch.load' received a zip file")
    with orderly_exit():
        _run()


def _run() -> None:
    try:
        try:
            _check_working_directory()
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        typer.echo(f"clearhead: error: {_error_line(error)}", err=True)
        if isinstance(error, OSError) and error.filename == _STDOUT:  # the flush at exit would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except OSError:
        raise ValueError("the working directory was deleted; change to another one") from None


_NO_MEMORY = re.compile(r"(can't|cannot) allocate memory|out of memory", re.IGNORECASE)
"""Messages of torch and of the operating system."""

_STDOUT = "standard output"


class _StandardOutput(io.FileIO):
    """Standard output with its name in errors. Errors of the operating system do not name it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, _STDOUT) from None


class _ClosedOutput(io.FileIO):
    """In place of a standard output that is closed. The first write fails; the next one is the flush at exit."""

    failed = False

    def write(self, data: Any, /) -> int:
        if not self.failed:
            self.failed = True
            raise OSError(errno.EBADF, "it is closed; redirect it to a file or to /dev/null", _STDOUT)
        return super().write(data)


def _wrap_standard_output() -> None:
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_ClosedOutput(os.devnull, "w")), "utf-8")
        return
    try:
        raw = _StandardOutput(sys.stdout.fileno(), "w", closefd=False)
    except (AttributeError, OSError, ValueError):  # closed, or replaced by another object
        return
    old = sys.stdout
    if old.isatty():  # a terminal may be unable to show a character
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), old.encoding, "replace", line_buffering=True)
    else:  # also where the system has another encoding for files
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", old.errors)


def _error_line(error: Exception) -> str:
    line = str(error)
    if isinstance(error, MemoryError | RuntimeError):
        line = f"not enough memory: {line or 'an object could not be created'}"
    if isinstance(error, OSError) and error.strerror:
        line = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    line = " ".join(part.strip() for part in line.splitlines())  # a file name may have several lines
    return re.sub("[\x00-\x1f\x7f-\x9f]", lambda character: f"\\x{ord(character[0]):02x}", line)
