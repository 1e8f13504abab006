"""`clearhead tokenizer`: tokenizers of one's own."""

import json
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.text.encode import ErrorsOption
from clearhead.io.locks import LOCK_NAME, folder_lock

tokenizer = typer.Typer(no_args_is_help=True, help="Make tokenizers.")

_FILES = {"tokenizer.json", "tokenizer_config.json", LOCK_NAME}
_SAMPLE = 10_000  # lines of each file in which tokens and words are counted


class LayoutOption(StrEnum):
    """Whom a tokenizer is for."""

    encoder_decoder = "encoder-decoder"
    encoder = "encoder"


@tokenizer.callback()
def _tokenizer() -> None:
    pass


@tokenizer.command()
def train(
    context: typer.Context,
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="UTF-8 files with a text a line, .jsonl or .parquet files.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the tokenizer's files go.")],
    vocab_size: Annotated[
        int, typer.Option(help="Tokens in all: special ones, 256 bytes, the alphabet, and what is learnt.")
    ],
    layout: Annotated[
        LayoutOption,
        typer.Option(
            "--for",
            help="Whose special tokens it has: an encoder–decoder's (</s>, <unk>, <pad>, as Marian) or an encoder's "
            "([CLS], [SEP] ..., as BERT).",
        ),
    ] = LayoutOption.encoder_decoder,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Put texts in lower case.")] = False,
    min_frequency: Annotated[
        int | None, typer.Option(help="How often a pair must come to be joined. Default: 2.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="The longest input, in tokens, that the files shall tell. Default: 512.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help='The column of .jsonl and .parquet files that holds the texts. Default: "text".')
    ] = None,
    errors: Annotated[ErrorsOption, typer.Option(help="What to do with bytes that are not UTF-8.")] = (
        ErrorsOption.strict
    ),
    as_json: options.Json = False,
) -> None:
    """Byte pair encoding, learnt from texts: a folder that opens here and in transformers.

    One vocabulary for both languages of a translator: give the files of both.
    """
    from clearhead.data.corpus import Corpus

    if "-" in sources:
        raise ValueError("the texts are read twice, which standard input cannot be: give files")
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; a folder is wanted")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist")
    context.with_resource(folder_lock(output))
    _check_folder(output)
    corpus = Corpus(sources, column=column, errors=errors.value)
    from clearhead.tokenizers.bpe import tokens_per_word, train_bpe

    given = {"min_frequency": min_frequency, "max_length": max_length}
    chosen = {name: number for name, number in given.items() if number is not None}
    made = train_bpe(corpus, vocab_size=vocab_size, architecture=layout.value, lowercase=lowercase, **chosen)
    made.save(output, None)
    each = [islice(Corpus([source], column=column, errors=errors.value), _SAMPLE) for source in sources]
    size, share = made.backend.get_vocab_size(), tokens_per_word(made, list(chain.from_iterable(each)))
    if as_json:
        typer.echo(json.dumps({"vocab_size": size, "tokens_per_word": share, "output": str(output)}))
    else:
        typer.echo(f"{size:,} tokens, {share:.2f} for a word, to {output}")


def _check_folder(folder: Path) -> None:
    """Raise a ValueError for a folder with other files, which would not match the new tokenizer."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in _FILES)
    if others:
        raise ValueError(f"{folder} holds {others[0]} already; a new or empty folder is wanted")
