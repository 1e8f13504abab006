"""`clearhead translate`: lines to lines."""

import json
import sys
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.text.encode import ErrorsOption

if TYPE_CHECKING:
    from clearhead.pipelines.outputs import Generated
    from clearhead.pipelines.text_to_text import TextToText


class RuntimeOption(StrEnum):
    """What computes."""

    torch = "torch"
    onnx = "onnx"


def translate(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[FILE]", help="UTF-8 file with a text a line, .jsonl, .parquet, .csv or .tsv; - is standard input."
        ),
    ] = "-",
    model: options.Translator = options.TRANSLATOR,
    beam_size: options.BeamSize = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="So many outputs for each line, best first, with tabs between them.")
    ] = 1,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    prefix: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For each line what its output must start with; a line may be empty."),
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A line that is too long for the model is an error.")
    ] = False,
    column: options.Column = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    runtime: Annotated[
        RuntimeOption,
        typer.Option(help="onnx: ONNX Runtime, for a folder that `clearhead export --to onnx` wrote; on the CPU."),
    ] = RuntimeOption.torch,
    errors: Annotated[ErrorsOption, typer.Option(help="What to do with bytes that are not UTF-8.")] = (
        ErrorsOption.strict
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines with tokens, log-probabilities and scores.")
    ] = False,
) -> None:
    """Translate lines, in order: one output line for each input line, an empty one for an empty one."""
    from clearhead.data.corpus import Corpus

    corpus = Corpus([source], column=column, errors=errors.value)
    prefixes = None if prefix is None else Corpus([str(prefix)], errors=errors.value)
    from clearhead.finite import naming
    from clearhead.pipelines.text_to_text import TextToText

    translator = TextToText.from_pretrained(model, precision=precision.value, device=device, runtime=runtime.value)
    translator, source_lang, target_lang = for_languages(translator, source_lang, target_lang)
    name = "standard input" if source == "-" else source
    outputs = translator.generate_iter(
        corpus,
        prefixes=prefixes,
        source_lang=source_lang,
        target_lang=target_lang,
        strict=strict,
        label=lambda number: f"{name}, line {number + 1}",
        beam_size=beam_size,
        num_return_sequences=n_best,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        length_penalty=length_penalty,
    )
    lines = cut = 0
    with naming(where=corpus.location):
        for output in outputs:
            lines += 1
            cut += not output.complete
            line = json.dumps(to_dict(output), ensure_ascii=False, allow_nan=False) if as_json else _line(output)
            sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    warn_truncated(cut, lines)


def warn_truncated(cut: int, outputs: int) -> None:
    """Says on standard error how many outputs were cut at the greatest length, if any were."""
    if cut:
        said = f"{cut} of {outputs} outputs did not end by themselves and were cut"
        typer.echo(f"clearhead: {said}; --max-new-tokens allows longer ones", err=True)


def to_dict(output: "Generated") -> dict[str, Any]:
    """An output as plain JSON values; "n_best" is there where several were asked for."""
    data = asdict(replace(output, n_best=()))
    del data["n_best"]
    if len(output.n_best) > 1:
        data["n_best"] = [to_dict(one) for one in output.n_best]
    return data


def one_line(text: str) -> str:
    """A text without line breaks: they would end the line."""
    return " ".join(text.split("\n")).replace("\r", " ")


def _line(output: "Generated") -> str:
    found = output.n_best or (output,)
    return "\t".join(one_line(one.text) if len(found) == 1 else one_line(one.text).replace("\t", " ") for one in found)


def for_languages(
    translator: "TextToText", source: str | None, target: str | None
) -> "tuple[TextToText, str | None, str | None]":
    """A model that is told its languages in words, as T5 is, is set up for them; others are told them at each text."""
    tasks = [task for task in translator.prompts.tasks if task.startswith("translation_")]
    if not tasks or translator.tokenizer.languages:
        return translator, source, target
    pairs = ", ".join(task.removeprefix("translation_").replace("_to_", " to ") for task in tasks)
    if source is None and target is None:  # a model that was tuned further may need no telling
        said = f"no languages given: lines are taken as they are; --source-lang and --target-lang: it knows {pairs}"
        typer.echo(f"clearhead: {said}", err=True)
        return translator, None, None
    if f"translation_{source}_to_{target}" not in tasks:
        raise ValueError(f"this model is told its languages: give --source-lang and --target-lang; it knows {pairs}")
    return translator.for_task(f"translation_{source}_to_{target}"), None, None
