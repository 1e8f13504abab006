"""`clearhead summarize`: summarize documents."""

import json
import sys
from typing import Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.text.translate import one_line, to_dict, warn_truncated
from clearhead.data.corpus import open_source, source_name


def summarize(
    model: options.Seq2SeqModel,
    sources: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Documents, one UTF-8 file each; - is standard input.")
    ],
    beam_size: options.BeamSize = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines with the tokens and scores of each part.")
    ] = False,
) -> None:
    """Summarize documents, one line per document. Longer documents are split between sentences."""
    documents = [read_text(source) for source in sources]
    from clearhead.finite import error_context
    from clearhead.pipelines.summarizer import summarize as summarize_text
    from clearhead.pipelines.text_to_text import TextToText

    summarizer = TextToText.from_pretrained(model, precision=precision.value, device=device)
    parts = truncated = 0
    for source, document in zip(sources, documents, strict=True):
        with error_context(location=[source_name(source)].__getitem__):
            summary = summarize_text(
                summarizer,
                document,
                source_lang=source_lang,
                target_lang=target_lang,
                beam_size=beam_size,
                max_new_tokens=max_new_tokens,
                min_new_tokens=min_new_tokens,
                length_penalty=length_penalty,
            )
        if len(summary.parts) > 1:
            typer.echo(
                f"{source_name(source)}: {summary.tokens:,} tokens exceed the model's limit of "
                f"{summarizer.max_length:,}; split between sentences into {len(summary.parts)} parts",
                err=True,
            )
        line = one_line(summary.text)
        if as_json:
            data: dict[str, Any] = {"text": summary.text, "source": source, "tokens": summary.tokens}
            data["parts"] = [to_dict(part) for part in summary.parts]
            line = json.dumps(data, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        parts += len(summary.parts)
        truncated += sum(not part.complete for part in summary.parts)
    warn_truncated(truncated, parts)


def read_text(source: str) -> str:
    """Read a file, or standard input for "-", as one text without its byte order mark.

    Raises:
        ValueError: the file is missing or not UTF-8.
    """
    with open_source(source) as file:
        data: bytes = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source_name(source)} is not UTF-8: {error}; convert it, for example with iconv") from None
