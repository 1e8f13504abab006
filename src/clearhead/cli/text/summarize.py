"""`clearhead summarize`: documents to summaries."""

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
        list[str], typer.Argument(metavar="FILE...", help="Documents, a UTF-8 file each; - is standard input.")
    ],
    beam_size: options.BeamSize = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines with the parts' tokens and scores.")] = False,
) -> None:
    """A summary of each document, a line each. What is longer than the model is cut between sentences."""
    documents = [read_text(source) for source in sources]
    from clearhead.finite import naming
    from clearhead.pipelines.summarizer import summarize as summary_of
    from clearhead.pipelines.text_to_text import TextToText

    summarizer = TextToText.from_pretrained(model, precision=precision.value, device=device)
    parts = cut = 0
    for source, document in zip(sources, documents, strict=True):
        with naming(where=[source_name(source)].__getitem__):
            summary = summary_of(
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
            said = f"{summary.tokens:,} tokens, more than the model's {summarizer.max_length:,}"
            how = f"cut between sentences into {len(summary.parts)} parts"
            typer.echo(f"{source_name(source)}: {said}: {how}", err=True)
        line = one_line(summary.text)
        if as_json:
            data: dict[str, Any] = {"text": summary.text, "source": source, "tokens": summary.tokens}
            data["parts"] = [to_dict(part) for part in summary.parts]
            line = json.dumps(data, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        parts += len(summary.parts)
        cut += sum(not part.complete for part in summary.parts)
    warn_truncated(cut, parts)


def read_text(source: str) -> str:
    """Return a file, or standard input for "-", as one text without its byte order mark.

    Raises:
        ValueError: no such file, or one that is not UTF-8.
    """
    with open_source(source) as file:
        data: bytes = file.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source_name(source)} is not UTF-8: {error}; convert it first, such as with iconv") from None
