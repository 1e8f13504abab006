"""`clearhead evaluate translation`: BLEU and chrF."""

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


def translation(
    context: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="[SOURCE]", help="The texts to translate, a line each; of no need with --hypotheses."),
    ] = None,
    reference: texts.References = None,
    model: texts.Model = None,
    hypotheses: texts.Hypotheses = None,
    output: texts.Output = None,
    tokenize: Annotated[
        str,
        typer.Option(
            help="How sacrebleu cuts words for BLEU: 13a, intl, zh, char ...; none for texts that are cut already."
        ),
    ] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Upper and lower case are the same.")] = False,
    group_references: Annotated[
        bool,
        typer.Option(
            "--join-repeated",
            help="A source that comes several times counts once, with the references of all its lines.",
        ),
    ] = False,
    beam_size: options.BeamSize = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    max_new_tokens: options.MaxNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    precision: options.Precision = options.PrecisionOption.float32,
    device: options.Device = "auto",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """BLEU and chrF of translations, with sacrebleu's signatures."""
    from clearhead.metrics.bleu import translation_scores

    # what sacrebleu lacks is said before anything is computed
    translation_scores(["a"], [["a"]], tokenize=tokenize)
    if (model is None) == (hypotheses is None):
        raise ValueError("either --model or --hypotheses is wanted: who translates?")
    if source is None and (model is not None or group_references):
        raise ValueError(f"{'--join-repeated needs' if model is None else 'a model needs'} the SOURCE: give its file")
    if not reference:
        raise ValueError("--reference is wanted: what did people write?")
    texts.claim_output(context, output, hypotheses)
    beside = [path for path in (source, hypotheses) if path is not None]
    read = texts.read_beside([*beside, *reference])
    sources, golds = read[0] if source is not None else None, read[len(beside) :]
    data = _data(sources, golds, group_references)
    if hypotheses is not None:
        said = _chosen(read[len(beside) - 1], data, hypotheses)
    else:
        from clearhead.pipelines.text_to_text import TextToText

        translator = TextToText.from_pretrained(str(model), precision=precision.value, device=device)
        chosen: GenerationOptions = {
            "beam_size": beam_size,
            "max_new_tokens": max_new_tokens,
            "length_penalty": length_penalty,
        }
        shown = not quiet and sys.stderr.isatty()
        said = _translated(translator, data, f"{source}", (source_lang, target_lang), chosen, shown)
    if output is not None:
        # a line for each line of the source, joined or not
        lines = {place: text for text, places in zip(said, data.places, strict=True) for place in places}
        texts.write_lines(output, [lines[place] for place in sorted(lines)])
    scores = translation_scores(said, data.references, tokenize=tokenize, lowercase=lowercase)
    if as_json:
        typer.echo(json.dumps(asdict(scores), allow_nan=False))
        return
    typer.echo(f"BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}  ({scores.sentences:,} sentences)")
    typer.echo(f"BLEU {scores.bleu_signature}\nchrF {scores.chrf_signature}")


def _data(sources: Sequence[str] | None, references: Sequence[Sequence[str]], join: bool) -> "MultiReferenceCorpus":
    from clearhead.metrics.bleu import MultiReferenceCorpus, group_references

    if sources is not None and join:
        return group_references(sources, references)
    count = len(references[0])
    return MultiReferenceCorpus(
        list(sources or ()), [list(some) for some in references], [[number] for number in range(count)]
    )


def _chosen(hypotheses: Sequence[str], data: "MultiReferenceCorpus", path: Path) -> list[str]:
    """A translation for each source, of those that its lines have."""
    for places in data.places:
        for place in places:
            if hypotheses[place] != hypotheses[places[0]]:
                raise ValueError(
                    f"{path}: lines {places[0] + 1} and {place + 1} translate the same source in two ways; with "
                    "--join-repeated a source has one translation"
                )
    return [hypotheses[places[0]] for places in data.places]


def _translated(
    translator: "TextToText",
    data: "MultiReferenceCorpus",
    name: str,
    languages: tuple[str | None, str | None],
    chosen: "GenerationOptions",
    shown: bool,
) -> list[str]:
    from clearhead.finite import naming
    from clearhead.runtime.progress import token_progress

    translator, source_lang, target_lang = for_languages(translator, *languages)

    def line(number: int) -> str:
        return f"{name}, line {data.places[number][0] + 1}"

    outputs = translator.generate_iter(
        data.sources,
        source_lang=source_lang,
        target_lang=target_lang,
        label=line,
        **chosen,
    )
    said, cut = [], 0
    with token_progress(len(data.sources), shown, description="translating") as advance, naming(where=line):
        for output in outputs:
            said.append(one_line(output.text))
            cut += not output.complete
            advance(1, len(output.token_ids))
    warn_truncated(cut, len(said))
    return said
