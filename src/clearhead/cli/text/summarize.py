"""`clearhead summarize`: summarize documents."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clearhead.cli import options
from clearhead.cli.inputs import is_file, read_document, texts_of
from clearhead.cli.outputs import check_lines_output, json_line, kept_columns, line_writer, lock_output, shows_progress
from clearhead.cli.text.translate import one_line, to_dict, warn_truncated
from clearhead.data.corpus import Corpus, is_table, source_name

if TYPE_CHECKING:
    from clearhead.generation.config import GenerationOptions
    from clearhead.pipelines.summarizer import Summary

log = logging.getLogger(__name__)

_SUGGESTION = (
    "summarize needs a model. For English news: --model sshleifer/distilbart-cnn-12-6, which is downloaded from the "
    "Hugging Face Hub once (1.2 GB). For other texts: a folder or Hub id of a BART, Pegasus, T5 or mBART model that "
    "was trained for summarization"
)
_FIELDS = ("text", "source", "tokens", "parts")
"""Fields of a JSON line."""


class _Document(NamedTuple):
    """A text with its name in messages and the columns that are kept with it."""

    name: str
    text: str
    kept: Mapping[str, Any]


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|FILE",
        help="Documents: texts, UTF-8 files with one document each, or tables with one in each row (.jsonl, .parquet, "
        ".arrow, .csv, .tsv, or a folder of Hugging Face datasets). Default, and for -: standard input.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder or Hugging Face Hub id of an encoder–decoder.", metavar="MODEL"),
]


def summarize(
    context: typer.Context,
    sources: Sources = None,
    model: Model = None,
    output: options.Output = None,
    column: options.Column = None,
    keep: options.KeepInJson = None,
    beam_size: options.BeamSize = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.auto,
    strict: options.StrictPrecision = False,
    device: options.Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with the tokens and scores of each part.")
    ] = False,
) -> None:
    """Summarize documents, one line per document. Longer documents are split between sentences."""
    if model is None:
        raise ValueError(_SUGGESTION)
    names = kept_columns(keep, columns=_FIELDS, as_json=as_json)
    if output is not None:
        lock_output(context, output, sources or [])
        check_lines_output(output, as_json)
    documents = _documents(sources or ["-"], column, names)
    from clearhead.finite import error_context
    from clearhead.pipelines.summarizer import summarize as summarize_text
    from clearhead.pipelines.text_to_text import TextToText
    from clearhead.runtime.precision import strict_precision
    from clearhead.runtime.progress import token_progress

    with strict_precision(strict):
        summarizer = TextToText.from_pretrained(model, precision=precision.value, device=device)
    generation: GenerationOptions = {
        "beam_size": beam_size,
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "length_penalty": length_penalty,
    }
    parts = truncated = 0
    with (
        line_writer(output) as write,
        token_progress(None, shows_progress(output), description="summarizing") as on_step,
    ):
        for name, text, kept in documents:
            with error_context(location=[name].__getitem__):
                summary = summarize_text(
                    summarizer, text, source_lang=source_lang, target_lang=target_lang, **generation
                )
            if len(summary.parts) > 1:
                _report_parts(name, summary, summarizer.max_length)
            write(_json_line(name, summary, kept) if as_json else one_line(summary.text))
            on_step(1, sum(len(part.token_ids) for part in summary.parts), 1)
            parts += len(summary.parts)
            truncated += sum(not part.complete for part in summary.parts)
    warn_truncated(truncated, parts)


def _report_parts(name: str, summary: "Summary", limit: int | None) -> None:
    """Report on standard error that a document was split."""
    split = f"split between sentences into {len(summary.parts)} parts"
    typer.echo(f"{name}: {summary.tokens:,} tokens exceed the model's limit of {limit:,}; {split}", err=True)


def _json_line(name: str, summary: "Summary", kept: Mapping[str, Any]) -> str:
    parts = [to_dict(part) for part in summary.parts]
    return json_line({"text": summary.text, "source": name, "tokens": summary.tokens, "parts": parts}, kept)


def _documents(arguments: Sequence[str], column: str | None, keep: Sequence[str]) -> Iterable[_Document]:
    """Return each document. Files are read at once, so that a missing one is found early."""
    if not all(map(is_file, arguments)):
        texts = texts_of(arguments, column=column, keep=keep)
        return [_Document(texts.location(index), text, {}) for index, text in enumerate(texts)]
    if arguments == ["-"] and sys.stdin is not None and sys.stdin.isatty():
        return (_Document(source_name("-"), line, {}) for line in Corpus(["-"]))
    if (column is not None or keep) and not any(map(is_table, arguments)):
        option = "--keep" if column is None else "--column"
        raise ValueError(
            f"{arguments[0]} has no columns; {option} is for .jsonl, .parquet, .arrow, .csv and .tsv files"
        )
    documents: list[_Document] = []
    for source in arguments:
        if is_table(source):
            corpus = Corpus([source], column=column, keep=keep)
            rows = enumerate(corpus, start=1)
            documents += [_Document(f"{source}, row {number}", text, *corpus.take_kept(1)) for number, text in rows]
        else:
            document = read_document(source)
            if not document.strip():
                log.warning("%s contains no text", source_name(source))
            documents.append(_Document(source_name(source), document, {}))
    return documents
