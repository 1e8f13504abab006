"""Input files and texts of commands."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from clearhead.data.corpus import Corpus, open_source, source_name
from clearhead.data.file_formats import file_extension
from clearhead.data.lines import Errors, encoding_error

_TEXT_SUFFIXES = frozenset({".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", ".md", ".gz"})


class TypedTexts(Corpus):
    """Texts that were typed as arguments of a command, in place of files.

    Args:
        texts: the texts.

    Raises:
        ValueError: a text is not UTF-8.

    >>> from clearhead.cli.inputs import TypedTexts
    >>> list(TypedTexts(["Good morning!"]))
    ['Good morning!']
    """

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__([])
        self.texts = [_check_typed(text, self.location(index)) for index, text in enumerate(texts)]

    @property
    def total_bytes(self) -> int | None:
        return None

    def describe(self) -> list[list[str | None]]:
        return [["argument", text] for text in self.texts]

    def read(self, start: int = 0) -> Iterator[str]:
        self.texts_read = len(self.texts)
        return iter(self.texts[start:])

    def location(self, index: int) -> str:
        return f"argument {index + 1}"


def texts_of(
    arguments: Sequence[str], *, column: str | None = None, errors: Errors | None = None, keep: Sequence[str] = ()
) -> Corpus:
    """Return the texts of a command's arguments: those in files, or the arguments themselves.

    An argument is a file if it exists, or if it looks like a path: it ends in an extension for texts, or it is one word
    with a slash or an extension. All arguments must be files, or all texts. Without arguments, standard input is read.

    Args:
        arguments: files or texts; "-" is standard input.
        column, errors, keep: as in `Corpus`.

    Raises:
        ValueError: as in `Corpus`; files next to texts; a column for texts.

    >>> from clearhead.cli.inputs import texts_of
    >>> list(texts_of(["Where can I buy a ticket?"]))
    ['Where can I buy a ticket?']
    """
    files = [is_file(argument) for argument in arguments]
    if all(files):
        for argument in arguments:
            path = Path(argument)
            in_folder = path.parent != Path() and path.parent.is_dir()  # FOLDER/SPLIT of a dataset is not a path
            if (
                argument != "-"
                and file_extension(argument) not in _TEXT_SUFFIXES
                and not path.exists()
                and not in_folder
            ):
                raise ValueError(f"no such file: {argument}. If it is a text, send it to standard input")
        return Corpus(arguments or ["-"], column=column, errors=errors, keep=keep)
    if any(files):
        text, file = arguments[files.index(False)], arguments[files.index(True)]
        raise ValueError(f"give either files or texts: {file} is a file, and no file is named {text!r:.60}")
    if column is not None or keep:
        option = "--keep" if column is None else "--column"
        raise ValueError(f"{option} is for files; no file is named {arguments[0]!r:.60}")
    return TypedTexts(arguments)


def is_file(argument: str) -> bool:
    """Return whether an argument is a file, or looks like the path of one, as in `texts_of`."""
    try:
        if argument == "-" or (argument and Path(argument).exists()):
            return True
    except (OSError, ValueError):  # too long for a path, or with a null character
        if argument.split() != [argument]:
            return False
    if file_extension(argument) in _TEXT_SUFFIXES:
        return True
    return argument.split() == [argument] and ("/" in argument or Path(argument).suffix != "")


def read_document(argument: str) -> str:
    """Return a file, or standard input for "-", as one text without its byte order mark; other arguments as they are.

    Raises:
        ValueError: the file is missing, or the text is not UTF-8.

    >>> from clearhead.cli.inputs import read_document
    >>> read_document("It rained. We stayed.")
    'It rained. We stayed.'
    """
    if not is_file(argument):
        return _check_typed(argument, "the text")
    with open_source(argument) as file:
        data: bytes = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise encoding_error(error, source_name(argument), "convert it, for example with iconv") from None


def _check_typed(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # Python has replaced the bytes of the terminal by surrogates
        fix = "type it in a UTF-8 terminal, or give a UTF-8 file"
        raise ValueError(f"{name} is not UTF-8 at character {error.start + 1}; {fix}") from None
    return text
