"""`clearhead evaluate summarization`: ROUGE."""

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.evaluate import texts
from clearhead.cli.text.translate import one_line, warn_truncated

if TYPE_CHECKING:
    from clearhead.data.documents import Documents
    from clearhead.generation.config import GenerationOptions
    from clearhead.pipelines.text_to_text import TextToText


class Baseline(StrEnum):
    """Summaries that need no model."""

    first_sentence = "first-sentence"


def summarization(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="Documents, a line each, or .jsonl: objects with a document and its summaries.",
        ),
    ],
    reference: texts.References = None,
    model: texts.Model = None,
    hypotheses: texts.Hypotheses = None,
    baseline: Annotated[
        Baseline | None, typer.Option(help="Score each document's first sentence in place of a model.")
    ] = None,
    output: texts.Output = None,
    document_column: Annotated[
        str | None, typer.Option(help='The documents in a .jsonl file: texts or lists of sentences. Default: "source".')
    ] = None,
    reference_column: Annotated[
        str | None, typer.Option(help='The summaries in it: texts or lists of several. Default: "target".')
    ] = None,
    beam_size: options.BeamSize = None,
    max_new_tokens: options.MaxNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """ROUGE-1, ROUGE-2 and ROUGE-L of summaries: F1 in percent, the best of several references by each measure."""
    from clearhead.metrics.references import require_package
    from clearhead.metrics.rouge import summary_scores

    require_package("rouge_score")
    if sum(one is not None for one in (model, hypotheses, baseline)) != 1:
        raise ValueError("one of --model, --hypotheses and --baseline is wanted: who summarises?")
    texts.claim_output(context, output, hypotheses)
    data = _documents(source, reference, document_column, reference_column)
    if hypotheses is not None:
        (said,) = texts.read_beside([hypotheses])
        if len(said) != len(data.texts):
            raise ValueError(
                f"{hypotheses} has {len(said):,} lines for {len(data.texts):,} documents in {source}; one for each is "
                "wanted"
            )
    elif baseline is not None:
        said = data.leads
    else:
        from clearhead.pipelines.text_to_text import TextToText

        summarizer = TextToText.from_pretrained(str(model), precision=precision.value, device=device)
        chosen: GenerationOptions = {
            "beam_size": beam_size,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
        }
        said = _summarized(summarizer, data, chosen, shown=not quiet and sys.stderr.isatty())
    if output is not None:
        texts.write_lines(output, said)
    scores = summary_scores(said, data.references)
    if as_json:
        typer.echo(json.dumps(asdict(scores), allow_nan=False))
        return
    first, second, longest = scores.rouge1, scores.rouge2, scores.rouge_l
    typer.echo(f"ROUGE-1 {first:.2f}  ROUGE-2 {second:.2f}  ROUGE-L {longest:.2f}  ({scores.documents:,} documents)")


def _documents(
    source: Path, references: list[Path] | None, document_column: str | None, reference_column: str | None
) -> "Documents":
    from clearhead.data.documents import Documents, lead_sentence, read_documents

    if not references:
        if source.suffix != ".jsonl":
            raise ValueError("--reference is wanted: what did people write? Only a .jsonl file holds summaries itself")
        return read_documents(source, document=document_column or "source", reference=reference_column or "target")
    if document_column is not None or reference_column is not None:
        raise ValueError("columns are for a .jsonl file that holds the summaries too; leave --reference out")
    documents, *golds = texts.read_beside([source, *references])
    lines = [f"{source}, line {number}" for number in range(1, len(documents) + 1)]
    return Documents(documents, [lead_sentence(text) for text in documents], [list(some) for some in golds], lines)


def _summarized(
    summarizer: "TextToText", documents: "Documents", chosen: "GenerationOptions", *, shown: bool
) -> list[str]:
    from clearhead.finite import naming
    from clearhead.pipelines.summarizer import summaries
    from clearhead.runtime.progress import token_progress

    said, parts, cut = [], 0, 0
    with (
        token_progress(len(documents.texts), shown, description="summarizing") as advance,
        naming(where=documents.location),
    ):
        for summary in summaries(summarizer, documents.texts, **chosen):
            said.append(one_line(summary.text))
            parts += len(summary.parts)
            cut += sum(not part.complete for part in summary.parts)
            advance(1, sum(len(part.token_ids) for part in summary.parts))
    warn_truncated(cut, parts)
    return said
