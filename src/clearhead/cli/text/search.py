"""`clearhead search`: search an index."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import json_line, line_writer

if TYPE_CHECKING:
    from clearhead.retrieval.index import SearchResult


Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder that `clearhead index` wrote.")]
Queries = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUERY|FILE", help="Queries, or files with one per line. Default, and for -: standard input."
    ),
]
Top = Annotated[int, typer.Option("--top", "-k", min=1, help="Number of documents for each query.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="Folder or Hugging Face Hub id of the model that made the index. Default: where it was then.",
    ),
]
Rerank = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Cross-encoder that ranks the best --candidates again: a folder or Hub id."),
]
Candidates = Annotated[int | None, typer.Option(min=1, help="Number of documents for --rerank. Default: 100.")]
Hybrid = Annotated[bool, typer.Option("--hybrid", help="Fuse the ranking of the vectors with one of the words (BM25).")]
Approximate = Annotated[
    bool,
    typer.Option("--approximate", help="Search a graph of neighbors, made at first use, for millions of documents."),
]
Precision = Annotated[
    options.PrecisionOption | None, typer.Option(help="Precision of the computation. Default: that of the index.")
]


def search(
    folder: Folder,
    queries: Queries = None,
    top: Top = 10,
    model: Model = None,
    rerank: Rerank = None,
    candidates: Candidates = None,
    hybrid: Hybrid = False,
    approximate: Approximate = False,
    column: options.Column = None,
    precision: Precision = None,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, one per query.")] = False,
) -> None:
    """Print the documents of an index that match each query best, with their scores, best first."""
    from clearhead.retrieval.manifest import read_manifest

    read_manifest(folder)  # reports a wrong folder before the slow import of torch
    from clearhead.cli.inputs import texts_of

    if candidates is not None and rerank is None:
        raise ValueError("--candidates requires --rerank")
    corpus = texts_of(queries or [], column=column)
    from clearhead.pipelines.reranker import Reranker
    from clearhead.retrieval.index import CANDIDATES, Index

    index = Index.open(folder, precision=None if precision is None else precision.value, device=device)
    if model is not None:
        index.load_encoder(model)
    reranker = None if rerank is None else Reranker.from_pretrained(rerank, device=device)
    search = partial(
        index.search,
        top_k=top,
        reranker=reranker,
        candidates=candidates or CANDIDATES,
        hybrid=hybrid,
        approximate=approximate,
    )
    with line_writer(None) as write:
        for number, query in enumerate(corpus):
            try:
                results = search(query)
            except ValueError as error:
                raise ValueError(f"{corpus.location(number)}: {error}" if corpus.sources else str(error)) from None
            if as_json:
                write(json_line({"query": query, "results": [_fields(result) for result in results]}, {}))
                continue
            if corpus.sources or len(queries or []) > 1:
                write(f"{chr(10) if number else ''}{query}")
            for result in results:
                write(f"{result.score:.4f}  {result.index}  {' '.join(result.text.split())}")


def _fields(result: "SearchResult") -> dict[str, object]:
    return {"index": result.index, "score": result.score, "text": result.text, **result.columns}
