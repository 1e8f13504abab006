"""`clearhead rerank`: rank documents by their relevance to queries."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import json_line, line_writer, lock_output, shows_progress
from clearhead.cli.text.encode import ErrorsOption

if TYPE_CHECKING:
    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.reranker import Reranker

_SUGGESTION = (
    "rerank needs a model. For English: --model cross-encoder/ms-marco-MiniLM-L6-v2, which is downloaded from the "
    "Hugging Face Hub once. Or train one with `clearhead train`"
)


def rerank(
    context: typer.Context,
    queries: Annotated[
        str,
        typer.Argument(metavar="QUERIES", help="A query, or a file with one per line or row; - is standard input."),
    ],
    documents: Annotated[
        str,
        typer.Argument(metavar="DOCUMENTS", help="File with one document per line or row, of the same formats."),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Folder or Hugging Face Hub id of a cross-encoder."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Number of documents for each query. Default: all.")
    ] = None,
    output: options.Output = None,
    column: options.Column = None,
    query_column: Annotated[
        str | None, typer.Option(help='Column with the queries, as --column for the documents. Default: "text".')
    ] = None,
    precision: options.Precision = options.PrecisionOption.auto,
    strict: options.StrictPrecision = False,
    device: options.Device = "auto",
    errors: Annotated[
        ErrorsOption, typer.Option(help="Handling of bytes that are not UTF-8: raise an error, or replace them.")
    ] = ErrorsOption.strict,
) -> None:
    """Rank all documents by their relevance to each query. Prints JSON lines, one per query, best document first."""
    if model is None:
        raise ValueError(_SUGGESTION)
    from clearhead.cli.inputs import texts_of

    if queries == documents == "-":
        raise ValueError("queries and documents cannot both be standard input; give a file for one of them")
    query_corpus = texts_of([queries], column=query_column, errors=errors.value)
    document_corpus = texts_of([documents], column=column, errors=errors.value)
    if output is not None:
        lock_output(context, output, [*query_corpus.sources, *document_corpus.sources])
        if output.suffix != ".jsonl":
            raise ValueError(f"{output}: this command writes JSON lines; name the file .jsonl")
    from clearhead.pipelines.reranker import Reranker
    from clearhead.runtime.precision import strict_precision
    from clearhead.tokenizers.base import check_not_blank

    # all texts are checked before the first is computed
    query_texts, document_texts = list(query_corpus), list(document_corpus)
    if not document_texts:
        raise ValueError(f"{documents} has no documents")
    _check_each(document_corpus, document_texts, lambda text: check_not_blank(text, "the document"))
    with strict_precision(strict):
        reranker = Reranker.from_pretrained(model, precision=precision.value, device=device)
    reranker.check_ranks()
    _check_each(query_corpus, query_texts, reranker.check_query)
    truncated = _write(reranker, query_texts, document_texts, top_k, output, document_corpus.location)
    if truncated:
        limit = f"the model's limit of {reranker.max_length} tokens, query included"
        typer.echo(f"clearhead: {truncated} of the printed documents were truncated to {limit}", err=True)


def _write(
    reranker: "Reranker",
    queries: list[str],
    documents: list[str],
    top_k: int | None,
    output: Path | None,
    location: Callable[[int], str],
) -> int:
    """Write the ranking of each query; return the number of written documents that were truncated."""
    from clearhead.finite import error_context
    from clearhead.runtime.progress import token_progress

    total, truncated = len(queries) * len(documents), 0
    with (
        error_context(location=location),
        line_writer(output) as write,
        token_progress(total, shows_progress(output), description="reranking") as on_step,
    ):
        rankings = reranker.stream(
            queries, documents, top_k=top_k, on_batch=lambda pairs, tokens: on_step(pairs, tokens, pairs)
        )
        for query, ranking in zip(queries, rankings, strict=True):
            results = [{"index": one.index, "score": one.score, "text": one.text} for one in ranking]
            write(json_line({"query": query, "results": results}, {}))
            truncated += sum(one.truncated for one in ranking)
    return truncated


def _check_each(corpus: "Corpus", texts: list[str], check: Callable[[str], object]) -> None:
    """Check each text, and name its file and line in an error."""
    for index, text in enumerate(texts):
        try:
            check(text)
        except ValueError as error:
            raise ValueError(f"{corpus.location(index)}: {error}") from None
