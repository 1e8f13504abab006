"""`clearhead evaluate translation`: BLEU and chrF scores."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.evaluate import texts
from clearhead.cli.text.translate import for_languages, one_line, warn_truncated

if TYPE_CHECKING:
    from clearhead.generation.config import GenerationOptions
    from clearhead.metrics.bleu import MultiReferenceCorpus
    from clearhead.pipelines.text_to_text import TextToText


Source = Annotated[
    Path | None,
    typer.Argument(metavar="[SOURCE]", help="Texts to translate, one per line. Optional with --hypotheses."),
]
Tokenize = Annotated[
    str,
    typer.Option(help="Tokenizer of sacrebleu for BLEU: 13a, intl, zh, char ...; none for tokenized texts."),
]
Lowercase = Annotated[bool, typer.Option("--lowercase", help="Ignore case.")]
GroupReferences = Annotated[
    bool,
    typer.Option(
        "--join-repeated",
        help="Count a repeated source once, with the references of all its lines.",
    ),
]


def translation(
    context: typer.Context,
    source: Source = None,
    reference: texts.References = None,
    model: texts.Model = None,
    hypotheses: texts.Hypotheses = None,
    output: texts.Output = None,
    tokenize: Tokenize = "13a",
    lowercase: Lowercase = False,
    group_references: GroupReferences = False,
    beam_size: options.BeamSize = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    max_new_tokens: options.MaxNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    shortlist: options.Shortlist = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compute BLEU and chrF of translations, with the signatures of sacrebleu."""
    from clearhead.metrics.bleu import translation_scores

    # report missing packages of the tokenizer before the model runs
    translation_scores(["a"], [["a"]], tokenize=tokenize)
    if (model is None) == (hypotheses is None):
        raise ValueError("give either --model or --hypotheses")
    if source is None and (model is not None or group_references):
        raise ValueError(f"{'--join-repeated' if model is None else '--model'} requires the SOURCE file")
    if not reference:
        raise ValueError("give --reference")
    texts.claim_output(context, output, hypotheses, [source, *reference])
    inputs = [path for path in (source, hypotheses) if path is not None]
    columns = texts.read_aligned([*inputs, *reference])
    sources, references = columns[0] if source is not None else None, columns[len(inputs) :]
    data = _corpus(sources, references, group_references)
    if hypotheses is not None:
        outputs = _unique_translations(columns[len(inputs) - 1], data, hypotheses)
    else:
        from clearhead.pipelines.text_to_text import TextToText

        translator = TextToText.from_pretrained(
            str(model), precision=precision.value, device=device, shortlist=shortlist
        )
        generation_options: GenerationOptions = {
            "beam_size": beam_size,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
        }
        languages = source_lang, target_lang
        outputs = _translate(translator, data, f"{source}", languages, generation_options, quiet)
    if output is not None:
        _write_translations(output, outputs, data)
    scores = translation_scores(outputs, data.references, tokenize=tokenize, lowercase=lowercase)
    if as_json:
        typer.echo(json.dumps(asdict(scores), allow_nan=False))
        return
    typer.echo(f"BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}  ({scores.sentences:,} sentences)")
    typer.echo(f"BLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}")


def _corpus(sources: Sequence[str] | None, references: Sequence[Sequence[str]], join: bool) -> "MultiReferenceCorpus":
    from clearhead.metrics.bleu import MultiReferenceCorpus, group_references

    if sources is not None and join:
        return group_references(sources, references)
    count = len(references[0])
    return MultiReferenceCorpus(
        list(sources or ()), [list(lines) for lines in references], [[index] for index in range(count)]
    )


def _write_translations(path: Path, outputs: Sequence[str], data: "MultiReferenceCorpus") -> None:
    """Write one line per line of the source, even with --join-repeated."""
    lines = {index: text for text, indices in zip(outputs, data.lines, strict=True) for index in indices}
    texts.write_lines(path, [lines[index] for index in sorted(lines)])


def _unique_translations(hypotheses: Sequence[str], data: "MultiReferenceCorpus", path: Path) -> list[str]:
    """Return one translation per source; all lines with the same source must agree."""
    for indices in data.lines:
        for index in indices:
            if hypotheses[index] != hypotheses[indices[0]]:
                raise ValueError(
                    f"{path}: lines {indices[0] + 1} and {index + 1} translate the same source differently; "
                    "--join-repeated requires one translation per source"
                )
    return [hypotheses[indices[0]] for indices in data.lines]


def _translate(
    translator: "TextToText",
    data: "MultiReferenceCorpus",
    name: str,
    languages: tuple[str | None, str | None],
    generation_options: "GenerationOptions",
    quiet: bool,
) -> list[str]:
    from clearhead.finite import error_context
    from clearhead.runtime.progress import token_progress

    translator, source_lang, target_lang = for_languages(translator, *languages)

    def line(index: int) -> str:
        return f"{name}, line {data.lines[index][0] + 1}"

    outputs = translator.generate_iter(
        data.sources,
        source_lang=source_lang,
        target_lang=target_lang,
        label=line,
        **generation_options,
    )
    texts, truncated = [], 0
    with (
        token_progress(len(data.sources), not quiet and sys.stderr.isatty(), description="translating") as on_step,
        error_context(location=line),
    ):
        for output in outputs:
            texts.append(one_line(output.text))
            truncated += not output.complete
            on_step(1, len(output.token_ids))
    warn_truncated(truncated, len(texts))
    return texts
