"""`clearhead evaluate summarization`: ROUGE scores."""

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
    """Baseline without a model."""

    first_sentence = "first-sentence"


Source = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="Documents, one per line, or a .jsonl file with documents and reference summaries.",
    ),
]
BaselineOption = Annotated[
    Baseline | None, typer.Option(help="Score the first sentence of each document instead of a model.")
]
DocumentColumn = Annotated[
    str | None,
    typer.Option(help='Column of a .jsonl file with the documents: texts or lists of sentences. Default: "source".'),
]
ReferenceColumn = Annotated[
    str | None,
    typer.Option(help='Column of a .jsonl file with the reference summaries: a text or a list. Default: "target".'),
]


def summarization(
    context: typer.Context,
    source: Source,
    reference: texts.References = None,
    model: texts.Model = None,
    hypotheses: texts.Hypotheses = None,
    baseline: BaselineOption = None,
    output: texts.Output = None,
    column: DocumentColumn = None,
    reference_column: ReferenceColumn = None,
    beam_size: options.BeamSize = None,
    max_new_tokens: options.MaxNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute ROUGE-1, ROUGE-2 and ROUGE-L of summaries: F1 in percent, with the best of several references."""
    from clearhead.metrics.references import require_package
    from clearhead.metrics.rouge import summary_scores

    require_package("rouge_score")
    if sum(choice is not None for choice in (model, hypotheses, baseline)) != 1:
        raise ValueError("give exactly one of --model, --hypotheses and --baseline")
    texts.claim_output(context, output, hypotheses, [source, *(reference or ())])
    data = _read_documents(source, reference, column, reference_column)
    if hypotheses is not None:
        (outputs,) = texts.read_aligned([hypotheses])
        if len(outputs) != len(data.texts):
            raise ValueError(
                f"{hypotheses} has {len(outputs):,} lines for {len(data.texts):,} documents in {source}; expected one "
                "line per document"
            )
    elif baseline is not None:
        outputs = data.leads
    else:
        from clearhead.pipelines.text_to_text import TextToText

        summarizer = TextToText.from_pretrained(str(model), precision=precision.value, device=device)
        generation_options: GenerationOptions = {
            "beam_size": beam_size,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
        }
        outputs = _summarize(summarizer, data, generation_options, show_progress=not quiet and sys.stderr.isatty())
    if output is not None:
        texts.write_lines(output, outputs)
    scores = summary_scores(outputs, data.references)
    if as_json:
        typer.echo(json.dumps(asdict(scores), allow_nan=False))
        return
    typer.echo(
        f"ROUGE-1 {scores.rouge1:.2f}  ROUGE-2 {scores.rouge2:.2f}  ROUGE-L {scores.rouge_l:.2f}  "
        f"({scores.documents:,} documents)"
    )


def _read_documents(
    source: Path, references: list[Path] | None, column: str | None, reference_column: str | None
) -> "Documents":
    from clearhead.data.documents import Documents, lead_sentence, read_documents

    if not references:
        if source.suffix != ".jsonl":
            raise ValueError("give --reference; only a .jsonl file can contain the reference summaries")
        return read_documents(source, document=column or "source", reference=reference_column or "target")
    if column is not None or reference_column is not None:
        raise ValueError("--column and --reference-column require a .jsonl file without --reference")
    documents, *references_by_file = texts.read_aligned([source, *references])
    lines = [f"{source}, line {number}" for number in range(1, len(documents) + 1)]
    return Documents(
        documents, [lead_sentence(text) for text in documents], [list(lines) for lines in references_by_file], lines
    )


def _summarize(
    summarizer: "TextToText", documents: "Documents", generation_options: "GenerationOptions", *, show_progress: bool
) -> list[str]:
    from clearhead.finite import error_context
    from clearhead.pipelines.summarizer import summaries
    from clearhead.runtime.progress import token_progress

    outputs, parts, truncated = [], 0, 0
    with (
        token_progress(len(documents.texts), show_progress, description="summarizing") as on_step,
        error_context(location=documents.location),
    ):
        for summary in summaries(summarizer, documents.texts, **generation_options):
            outputs.append(one_line(summary.text))
            parts += len(summary.parts)
            truncated += sum(not part.complete for part in summary.parts)
            on_step(1, sum(len(part.token_ids) for part in summary.parts))
    warn_truncated(truncated, parts)
    return outputs
