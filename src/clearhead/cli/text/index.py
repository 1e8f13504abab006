"""`clearhead index`: encode documents and write an index to search."""

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.outputs import kept_columns, shows_progress
from clearhead.cli.text import encode as encode_command

if TYPE_CHECKING:
    from clearhead.corpus.encode import EncodingStats
    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.retrieval.build import BuildOptions


class DtypeOption(StrEnum):
    """dtype of the fast pass over all documents."""

    int8 = "int8"
    float32 = "float32"
    bfloat16 = "bfloat16"


Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the index.")]
Append = Annotated[bool, typer.Option("--append", help="Append the documents to the existing index --output.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help=f"Model folder or Hugging Face Hub id. Default: {options.DEFAULT_MODEL}; with --append, the model of the "
        "index.",
    ),
]
Dtype = Annotated[
    DtypeOption | None,
    typer.Option(
        help="dtype of the fast pass. int8, the default, keeps float32 vectors next to the codes, and finds the same "
        "documents as float32. bfloat16 has half the size of float32, and rounded scores."
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an existing index or an interrupted run. With --append: discard an interrupted append, which "
        "must exist, and keep the documents of the index.",
    ),
]
Normalize = Annotated[
    bool, typer.Option("--normalize/--no-normalize", help="Scale vectors to length 1: scores are cosines.")
]
Prompt = Annotated[
    str | None,
    typer.Option(help="Prompt of documents: a name or a text. Default: the model's prompt for documents, if any."),
]
QueryPrompt = Annotated[
    str | None,
    typer.Option(help="Prompt of queries: a name or a text. Default: the model's prompt for queries, if any."),
]
QueryAdapter = Annotated[
    str | None,
    typer.Option(
        help="Task whose adapter queries use. Default: retrieval.query if --adapter is retrieval.passage, else that of "
        "--adapter."
    ),
]


def index(
    sources: options.Texts = None,
    output: Output = None,
    model: Model = None,
    append: Append = False,
    column: options.Column = None,
    keep: options.Keep = None,
    dtype: Dtype = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run with the same --output.")] = False,
    overwrite: Overwrite = False,
    pooling: encode_command.Pooling = None,
    normalize: Normalize = True,
    max_length: encode_command.MaxLength = None,
    prompt: Prompt = None,
    query_prompt: QueryPrompt = None,
    adapter: encode_command.Adapter = None,
    query_adapter: QueryAdapter = None,
    truncate_dim: encode_command.TruncateDim = None,
    batch_tokens: encode_command.BatchTokens = None,
    precision: options.Precision = options.PrecisionOption.auto,
    strict: options.StrictPrecision = False,
    device: options.Device = "auto",
    errors: encode_command.Errors = encode_command.ErrorsOption.strict,
    quiet: encode_command.Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Encode documents and write an index for `clearhead search`. The input is streamed and can be of any size.

    The index appears when it is complete.
    """
    if output is None:
        raise ValueError("index needs --output FOLDER, the folder of the index")
    from clearhead.cli.inputs import texts_of

    corpus = texts_of(
        sources or [],
        column=column,
        errors=errors.value,
        keep=kept_columns(keep, columns=("text", "index", "score")),
    )
    from clearhead.retrieval.build import BuildOptions
    from clearhead.runtime.precision import strict_precision
    from clearhead.runtime.vectors import EncodeOptions

    with strict_precision(strict):
        encoder = _load_encoder(output if append else None, dtype, model, precision, device, adapter)
    encode_options = EncodeOptions(
        pooling=None if pooling is None else pooling.value,
        normalize=None if normalize else False,
        max_length=max_length,
        batch_tokens=batch_tokens,
        prompt=prompt,
        truncate_dim=truncate_dim,
    )
    stored_dtype = DtypeOption.int8 if dtype is None else dtype
    build_options = BuildOptions(stored_dtype.value, encode_options, query_prompt, query_adapter, resume, overwrite)
    start = time.perf_counter()
    stats, num_tokens = _run(encoder, corpus, output, build_options, append, quiet)
    _print_summary(stats, num_tokens, time.perf_counter() - start, output, quiet, as_json)


def _load_encoder(
    index: Path | None,
    dtype: DtypeOption | None,
    model: str | None,
    precision: options.PrecisionOption,
    device: str,
    adapter: str | None,
) -> "TextEncoder":
    """Load the model of documents. An append uses that of its index by default."""
    if index is None:
        from clearhead.pipelines.text_encoder import TextEncoder

        name = options.DEFAULT_MODEL if model is None else model
        return TextEncoder.from_pretrained(name, precision=precision.value, device=device, adapter=adapter or None)
    from clearhead.retrieval.identity import load_encoder
    from clearhead.retrieval.manifest import read_manifest

    existing = read_manifest(index)
    if dtype is not None and dtype.value != existing.dtype:
        raise ValueError(f"{index} has the dtype {existing.dtype}; omit --dtype, or build the index again")
    source = existing.encoder["model"] if model is None else model
    own_precision = None if precision is options.PrecisionOption.auto else precision.value
    return load_encoder(index, existing.encoder, source, own_precision, device, adapter)


def _run(
    encoder: "TextEncoder", corpus: "Corpus", output: Path, build_options: "BuildOptions", append: bool, quiet: bool
) -> "tuple[EncodingStats, int]":
    """Write the index; return the statistics and the number of tokens that this run encoded."""
    from clearhead.retrieval.build import append_to_index, build_index
    from clearhead.runtime.progress import token_progress

    num_tokens = 0
    with token_progress(corpus.total_bytes, not quiet and shows_progress(output)) as update_bar:

        def on_step(done: int, tokens: int, texts: int) -> None:
            nonlocal num_tokens
            num_tokens += tokens
            update_bar(done, tokens, texts)

        write = append_to_index if append else build_index
        return write(encoder, corpus, output, build_options, on_step), num_tokens


def _print_summary(
    stats: "EncodingStats", num_tokens: int, seconds: float, output: Path, quiet: bool, as_json: bool
) -> None:
    from clearhead.retrieval.manifest import read_manifest

    manifest = read_manifest(output)
    summary = {
        "documents": stats.texts,
        "tokens": stats.tokens,
        "truncated": stats.truncated,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(num_tokens / seconds) if seconds else 0,
        "in_index": manifest.rows,
        "dimensions": manifest.width,
        "dtype": manifest.dtype,
        "model": manifest.encoder["model"],
        "precision": manifest.encoder["precision"],
        "output": str(output),
    }
    if as_json:
        typer.echo(json.dumps(summary))
    elif not quiet:
        truncated = f" ({stats.truncated:,} truncated)" if stats.truncated else ""
        more = f", {manifest.rows:,} in all" if manifest.rows != stats.texts else ""
        typer.echo(
            f"{stats.texts:,} document{'' if stats.texts == 1 else 's'}{truncated}{more}, {stats.tokens:,} tokens in "
            f"{seconds:.2f} s: {summary['tokens_per_second']:,} tokens/s in {summary['precision']}, to {output}",
            err=True,
        )
