"""`clearhead tokenizer`: train a tokenizer."""

import json
import os
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli import options
from clearhead.cli.text.encode import ErrorsOption
from clearhead.io.atomic import remove_leftovers
from clearhead.io.folders import atomic_folder, follow_link
from clearhead.io.json import path_text
from clearhead.io.locks import LOCK_NAME, folder_lock

tokenizer = typer.Typer(no_args_is_help=True, help="Train tokenizers.")

_FILES = {"tokenizer.json", "tokenizer_config.json", LOCK_NAME}
_SAMPLE = 10_000  # lines of each file for the number of tokens per word


class ArchitectureOption(StrEnum):
    """Architecture that a tokenizer is for."""

    encoder_decoder = "encoder-decoder"
    encoder = "encoder"


@tokenizer.callback()
def _tokenizer() -> None:
    pass


@tokenizer.command()
def train(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files: UTF-8 text with one text per line, .jsonl, .parquet, .arrow, .csv or .tsv, or folders of "
            "Hugging Face datasets.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Output folder.")],
    vocab_size: Annotated[
        int, typer.Option(help="Size of the vocabulary, including special tokens, 256 bytes and the alphabet.")
    ],
    layout: Annotated[
        ArchitectureOption,
        typer.Option(
            "--for",
            help="Special tokens of an encoder–decoder (</s>, <unk>, <pad>, as in Marian) or of an encoder ([CLS], "
            "[SEP] ..., as in BERT).",
        ),
    ] = ArchitectureOption.encoder_decoder,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Convert texts to lower case.")] = False,
    min_frequency: Annotated[
        int | None, typer.Option(help="Minimum frequency of a pair that is merged. Default: 2.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum input length in tokens to save with the tokenizer. Default: 512.")
    ] = None,
    column: options.Column = None,
    errors: Annotated[
        ErrorsOption, typer.Option(help="Handling of bytes that are not UTF-8: raise an error, or replace them.")
    ] = (ErrorsOption.strict),
    as_json: options.Json = False,
) -> None:
    """Train a byte-level BPE tokenizer on texts. Clearhead and transformers can load the output folder.

    For a translation model with one shared vocabulary, give the files of both languages.
    """
    from clearhead.data.corpus import Corpus

    if "-" in sources:
        raise ValueError("the texts are read twice; give files instead of standard input")
    output = _lock_folder(context, output)
    corpus = Corpus(sources, column=column, errors=errors.value)
    if not any(text.strip() for text in corpus):
        raise ValueError(f"{', '.join(sources)}: no text to learn from; all lines are blank")
    from clearhead.tokenizers.bpe import tokens_per_word, train_bpe

    settings = {"min_frequency": min_frequency, "max_length": max_length}
    chosen = {name: value for name, value in settings.items() if value is not None}
    trained = train_bpe(corpus, vocab_size=vocab_size, architecture=layout.value, lowercase=lowercase, **chosen)
    if _is_replaceable(output):
        with atomic_folder(output, _check_files) as part:
            trained.save(part, None)
    else:
        trained.save(output, None)
    samples = [islice(Corpus([source], column=column, errors=errors.value), _SAMPLE) for source in sources]
    size, ratio = trained.backend.get_vocab_size(), tokens_per_word(trained, list(chain.from_iterable(samples)))
    if as_json:
        typer.echo(json.dumps({"vocab_size": size, "tokens_per_word": ratio, "output": str(output)}))
    else:
        typer.echo(f"{size:,} tokens, {ratio:.2f} per word, to {path_text(output)}")


def _lock_folder(context: typer.Context, output: Path) -> Path:
    """Lock the output folder until the command ends, remove the files of a killed run, and return the folder.

    Raises:
        ValueError: it is a file, has other files, or its parent does not exist.
    """
    output = follow_link(output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file; give a folder")
    if not output.parent.is_dir():
        raise ValueError(f"{output}: the folder {output.parent} does not exist")
    context.with_resource(folder_lock(output))
    for name in _FILES:
        remove_leftovers(output / name)
    _check_files(output)
    return output


def _is_replaceable(folder: Path) -> bool:
    """Return whether a folder has an earlier tokenizer and can be renamed, so that both files are replaced together."""
    place = folder.resolve()
    has_tokenizer = (folder / "tokenizer.json").exists()
    is_in_use = place.is_mount() or Path.cwd().is_relative_to(place) or not os.access(place.parent, os.W_OK)
    return has_tokenizer and not is_in_use


def _check_files(folder: Path) -> None:
    """Check that a folder has at most the files of a tokenizer.

    Raises:
        ValueError: it has other files, which would be lost.
    """
    others = sorted(path.name for path in folder.iterdir() if path.name not in _FILES) if folder.exists() else []
    if others:
        raise ValueError(f"{folder} contains {others[0]}; give a new or empty folder")
