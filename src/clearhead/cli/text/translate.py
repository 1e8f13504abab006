"""`clearhead translate`: translate texts."""

from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli import options
from clearhead.cli.outputs import check_lines_output, json_line, kept_columns, lock_output, window_texts, write_results
from clearhead.cli.text.encode import ErrorsOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from clearhead.data.corpus import Corpus
    from clearhead.pipelines.seq2seq.outputs import Generated
    from clearhead.pipelines.text_to_text import TextToText
    from clearhead.pipelines.translator import Translator


class RuntimeOption(StrEnum):
    """Library that runs the model."""

    torch = "torch"
    onnx = "onnx"


_FIELDS = ("text", "token_ids", "tokens", "log_probs", "score", "complete", "truncated", "n_best", "parts")
"""Fields of a JSON line."""

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Folder or Hugging Face Hub id of an encoder–decoder. Default: the bundled models for everyday English "
        "and German.",
        metavar="MODEL",
    ),
]
CopyUnknown = Annotated[
    bool | None,
    typer.Option(
        "--copy-unknown/--no-copy-unknown",
        help="Copy URLs, e-mail addresses, codes, emoji and words in other scripts from the input. Default: for the "
        "bundled models, and for models that were trained with placeholders.",
    ),
]
NBest = Annotated[
    int,
    typer.Option(
        min=1,
        help="Number of outputs per line, best first, separated by tabs; at most the number of beams. In Python: "
        "num_return_sequences.",
    ),
]
Prefix = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the start of each output, one per line; a line can be empty."),
]
SplitSentences = Annotated[
    bool,
    typer.Option(
        "--split-sentences",
        help="Translate each sentence of a text by itself, for models that were trained on single sentences, such as "
        "the bundled one.",
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Raise an error for a line that is too long for the model, and if this machine or model cannot compute in "
        "--precision.",
    ),
]
Runtime = Annotated[
    RuntimeOption,
    typer.Option(help="onnx: run a folder written by `clearhead export --to onnx` with ONNX Runtime on the CPU."),
]
Errors = Annotated[
    ErrorsOption, typer.Option(help="Handling of bytes that are not UTF-8: raise an error, or replace them.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines with tokens, log-probabilities and scores.")]


def translate(
    context: typer.Context,
    sources: options.Texts = None,
    output: options.Output = None,
    model: Model = None,
    source_lang: options.From = None,
    target_lang: options.To = None,
    beam_size: options.BeamSize = None,
    n_best: NBest = 1,
    prefix: Prefix = None,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    length_penalty: options.LengthPenalty = None,
    split_sentences: SplitSentences = False,
    strict: Strict = False,
    column: options.Column = None,
    keep: options.KeepInJson = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    runtime: Runtime = RuntimeOption.torch,
    shortlist: options.Shortlist = None,
    copy_unknown: CopyUnknown = None,
    errors: Errors = ErrorsOption.strict,
    as_json: AsJson = False,
) -> None:
    """Translate texts, one output line per text or input line. An empty line gives an empty line."""
    from clearhead.cli.inputs import texts_of
    from clearhead.data.corpus import Corpus

    _check_split_sentences(split_sentences, n_best, prefix)
    names = kept_columns(keep, columns=_FIELDS, as_json=as_json)
    corpus = texts_of(sources or [], column=column, errors=errors.value, keep=names)
    if output is not None:
        lock_output(context, output, [*corpus.sources, prefix])
        check_lines_output(output, as_json)
    prefixes = None if prefix is None else Corpus([str(prefix)], errors=errors.value)
    from clearhead.pipelines.text_to_text import WINDOW_TEXTS

    load = partial(_load, precision, device, runtime, shortlist, copy_unknown, strict)
    translator, languages = _choose_translator(model, source_lang, target_lang, load)
    _check_n_best(n_best, translator.generation_config.updated(beam_size=beam_size).beam_size)
    generate_iter = partial(
        translator.generate_iter,
        prefixes=prefixes,
        strict=strict,
        window=window_texts(corpus, WINDOW_TEXTS),
        beam_size=beam_size,
        num_return_sequences=n_best,
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        length_penalty=length_penalty,
        **languages,
    )
    write = _write_by_sentence if split_sentences else partial(_write, warn_sentences=_is_bundled(model))
    with _named_prefixes(prefix):
        complete = write(corpus, output, generate_iter, as_json)
    warn_truncated(complete.count(False), len(complete))
    _report_directions(translator)


@contextmanager
def _named_prefixes(prefix: Path | None) -> "Iterator[None]":
    """Name the file of the prefixes in an error about their number."""
    from clearhead.runtime.streaming import PrefixCountError

    try:
        yield
    except PrefixCountError as error:
        raise ValueError(f"{prefix}: {error}") from None


def _choose_translator(
    model: str | None, source: str | None, target: str | None, load: "Callable[[str], TextToText]"
) -> "tuple[TextToText | Translator, dict[str, Any]]":
    """Return a model, or the bundled ones for no model, and the languages that must be passed with each text."""
    from clearhead.pipelines.translator import Translator

    if model is None:
        return Translator(source, target, load), {}
    translator, source, target = for_languages(load(model), source, target)
    return translator, {"source_lang": source, "target_lang": target}


def _is_bundled(model: str | None) -> bool:
    from clearhead.io import hub

    return model is None or model in hub.TRANSLATORS.values()


def _report_directions(translator: "TextToText | Translator") -> None:
    """Report on standard error which directions were chosen, if they are not obvious."""
    from clearhead.pipelines.translator import Translator

    if isinstance(translator, Translator) and (report := translator.report()):
        typer.echo(f"clearhead: {report}", err=True)


def _load(
    precision: options.PrecisionOption,
    device: str,
    runtime: RuntimeOption,
    shortlist: bool | None,
    copy: bool | None,
    strict: bool,
    model: str,
) -> "TextToText":
    from clearhead.pipelines.text_to_text import TextToText
    from clearhead.runtime.precision import strict_precision

    with strict_precision(strict):
        return TextToText.from_pretrained(
            model,
            precision=precision.value,
            device=device,
            runtime=runtime.value,
            shortlist=shortlist,
            copy_unknown=copy,
        )


def _check_split_sentences(split_sentences: bool, n_best: int, prefix: Path | None) -> None:
    if split_sentences and (n_best > 1 or prefix is not None):
        raise ValueError(f"--split-sentences cannot be used with --{'prefix' if prefix else 'n-best'}")


def _check_n_best(n_best: int, beams: int) -> None:
    if n_best > beams:
        raise ValueError(f"--n-best {n_best} requires {n_best} beams; the search has {beams}. Add --beam-size {n_best}")


def _write(
    corpus: "Corpus",
    output: Path | None,
    generate_iter: "Callable[..., Iterator[Generated]]",
    as_json: bool,
    *,
    warn_sentences: bool,
) -> list[bool]:
    """Write the outputs, text by text; return whether each is complete."""
    texts = _SentenceCounter(corpus)
    written = write_results(
        corpus,
        output,
        lambda on_batch: generate_iter(texts, label=corpus.location, on_batch=on_batch),
        lambda result, kept: json_line(to_dict(result), kept) if as_json else _line(result),
        description="translating",
    )
    complete = [result.complete for result in written]
    if warn_sentences:
        texts.warn()
    return complete


def _write_by_sentence(
    corpus: "Corpus", output: Path | None, generate_iter: "Callable[..., Iterator[Generated]]", as_json: bool
) -> list[bool]:
    """Write the translations, sentence by sentence; return whether the output of each sentence is complete."""
    from clearhead.cli.text.split_sentences import Sentences, Translation
    from clearhead.finite import error_context

    parts = Sentences(corpus)

    def translations(on_batch: "Callable[[int, int], None]") -> "Iterator[Translation]":
        outputs = generate_iter(
            parts, label=lambda index: corpus.location(parts.text_of(index)), on_batch=parts.count_texts(on_batch)
        )
        with error_context(index=parts.text_of):
            yield from parts.join(outputs)

    def line(result: Translation, kept: "Mapping[str, Any]") -> str:
        if as_json:
            return json_line({"text": result.text, "parts": [to_dict(part) for part in result.parts]}, kept)
        return one_line(result.text)

    written = write_results(corpus, output, translations, line, description="translating")
    return [part.complete for result in written for part in result.parts]


class _SentenceCounter:
    """Iterate over texts, and count those with several sentences."""

    def __init__(self, texts: "Iterable[str]") -> None:
        self._texts, self._count = texts, 0

    def __iter__(self) -> "Iterator[str]":
        from clearhead.data.sentences import sentences

        for text in self._texts:
            self._count += len(sentences(text)) > 1
            yield text

    def warn(self) -> None:
        """Report on standard error that texts have several sentences."""
        if self._count:
            have = "text has" if self._count == 1 else "texts have"
            fix = "this model was trained on single sentences and may omit some; --split-sentences prevents that"
            typer.echo(f"clearhead: {self._count} {have} several sentences; {fix}", err=True)


def warn_truncated(truncated: int, outputs: int) -> None:
    """Warn on standard error if outputs were truncated at the maximum length."""
    if truncated:
        message = f"{truncated} of {outputs} outputs were truncated at the maximum length; increase --max-new-tokens"
        typer.echo(f"clearhead: {message}", err=True)


def to_dict(output: "Generated") -> dict[str, Any]:
    """Convert an output to JSON values, with "n_best" if there are several outputs."""
    data = asdict(replace(output, n_best=()))
    del data["n_best"]
    if len(output.n_best) > 1:
        data["n_best"] = [to_dict(item) for item in output.n_best]
    return data


def one_line(text: str) -> str:
    """Replace the line breaks of a text by spaces."""
    return " ".join(text.split("\n")).replace("\r", " ")


def _line(output: "Generated") -> str:
    texts = [one_line(item.text) for item in output.n_best or (output,)]
    return texts[0] if len(texts) == 1 else "\t".join(text.replace("\t", " ") for text in texts)


def for_languages(
    translator: "TextToText", source: str | None, target: str | None
) -> "tuple[TextToText, str | None, str | None]":
    """Return a model set up for its languages, and the languages that must still be passed with each text.

    Models such as T5 read the languages in a text prompt, which is set once. Other models get them with each text.
    """
    tasks = [task for task in translator.prompts.tasks if task.startswith("translation_")]
    if not tasks or translator.tokenizer.languages:
        return translator, source, target
    pairs = ", ".join(task.removeprefix("translation_").replace("_to_", " to ") for task in tasks)
    if source is None and target is None:  # a fine-tuned model may not need the prompt
        message = f"no --source-lang and --target-lang: texts get no prompt; the model supports {pairs}"
        typer.echo(f"clearhead: {message}", err=True)
        return translator, None, None
    if f"translation_{source}_to_{target}" not in tasks:
        raise ValueError(f"give --source-lang and --target-lang; the model supports {pairs}")
    return translator.for_task(f"translation_{source}_to_{target}"), None, None
