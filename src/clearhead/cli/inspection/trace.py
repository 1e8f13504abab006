"""`clearhead trace`: print every step of a forward pass."""

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.inspection.load import load
from clearhead.cli.inspection.trace_table import group_path, print_steps

if TYPE_CHECKING:
    from clearhead.inspection.trace.records import Trace
    from clearhead.inspection.trace.seq2seq import ForwardPass
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText

    Languages = tuple[str | None, str | None]  # source and target
    TraceResult = tuple[str, list[ForwardPass], int]  # title, passes, number of parameters

D_MODEL, HIDDEN, HEADS, DROP, LAYERS = 512, 2048, 8, 0.1, 5


def trace(
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="Text to run. Default: random values (30 x 200 x 512).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="Model folder or Hugging Face Hub id. Default: random weights."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Target text of an encoder–decoder, decoded in one pass (teacher forcing)."),
    ] = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    seq2seq: Annotated[
        bool, typer.Option("--seq2seq", help="Without --model: run an encoder–decoder with random weights.")
    ] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Print mean, standard deviation, minimum and maximum of each step.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Print only the steps of this part of the model, such as encoder.layers.0."),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(metavar="LAYER.HEAD", help="With --model: print the attention of this head instead of the steps."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print every step of a forward pass: its equation, named shape and parameters.

    Without arguments: an encoder with 5 layers (d_model 512, 8 heads, ffn_hidden 2048) on random values, seed 0.
    With a text: the same encoder on its whitespace-separated words, with random embeddings and sinusoidal positions.
    With --seq2seq: also a decoder of the same size on the target. Default target: the text.
    With --only: the steps of one part, such as one layer.
    With --model: the tokenizer and weights of the model. An encoder–decoder decodes the target, or three tokens with
    greedy search and caches.
    With --attention: the keys with the largest weights of one head for each token, in a decoder for each token that it
    produces; with --json, all weights.
    """
    import torch

    languages = source_lang, target_lang
    if languages != (None, None) and model is None:
        raise ValueError("--source-lang and --target-lang require --model")
    if attention is not None:
        _print_head(attention, text, model, target, languages, as_json)
        return
    with torch.no_grad():
        title, passes, parameters = _run(text, model, target, languages, seq2seq, values)
    if only is not None:
        passes = _select(passes, only)
    if as_json:
        steps = [
            ({"pass": part.name} if part.name else {}) | step.as_dict() for part in passes for step in part.trace.steps
        ]
        typer.echo(json.dumps(steps, ensure_ascii=False))
        return
    from rich.console import Console

    # a file has no width: 200 columns fit every equation
    print_steps(Console(width=None if sys.stdout.isatty() else 200), title, passes, parameters)


def _select(passes: "list[ForwardPass]", part: str) -> "list[ForwardPass]":
    """Keep the steps of one part of the model, and the passes that have any."""
    selected = []
    for one in passes:
        steps = tuple(step for step in one.trace.steps if f"{step.path}.".startswith(f"{part}."))
        if steps:
            selected.append(replace(one, trace=replace(one.trace, steps=steps)))
    if not selected:
        names = dict.fromkeys(group_path(step.path) for one in passes for step in one.trace.steps)
        raise ValueError(f"--only: the model has no part {part!r}. Its parts are {', '.join(names)}")
    return selected


def _print_head(
    name: str, text: str | None, model: str | None, target: str | None, languages: "Languages", as_json: bool
) -> None:
    if model is None or text is None:
        raise ValueError("--attention requires a text and --model")
    layer, _, head = name.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ValueError(f"--attention expects LAYER.HEAD, such as 0.3, both from 0; got {name!r}")
    from clearhead.inspection.attention.head import head_attention

    pipeline, source_lang, target_lang = _load(model, target, languages)
    results = head_attention(
        pipeline, text, int(layer), int(head), target, source_lang=source_lang, target_lang=target_lang
    )
    if as_json:
        typer.echo(json.dumps([result.as_dict() for result in results], ensure_ascii=False))
        return
    for number, result in enumerate(results):
        typer.echo(("\n" if number else "") + f"{result.part}, layer {layer}, head {head}")
        for line in result.lines():
            typer.echo(f"  {line}")


def _run(
    text: str | None, model: str | None, target: str | None, languages: "Languages", seq2seq: bool, values: bool
) -> "TraceResult":
    if model is not None and seq2seq:
        raise ValueError("--seq2seq is only for random weights; leave it out with --model")
    if model is not None:
        return _trace_checkpoint("" if text is None else text, model, target, languages, values)
    if seq2seq:
        return _trace_random_seq2seq(text, target, values)
    if target is not None:
        raise ValueError("--target is only for encoder–decoders; add --seq2seq, or --model with an encoder–decoder")
    return _trace_random_encoder(text, values)


def _trace_checkpoint(text: str, model: str, target: str | None, languages: "Languages", values: bool) -> "TraceResult":
    import torch

    from clearhead.inspection.trace.seq2seq import shorten, trace_text
    from clearhead.inspection.trace.trace import trace as run_trace
    from clearhead.pipelines.text_to_text import TextToText

    pipeline, source_lang, target_lang = _load(model, target, languages)
    if isinstance(pipeline, TextToText):
        parameters = sum(parameter.numel() for parameter in pipeline.model.parameters())
        passes = trace_text(pipeline, text, target, source_lang=source_lang, target_lang=target_lang, values=values)
        return model, passes, parameters
    (tokens,) = pipeline.tokenize([text])
    title = f"{model}: {shorten(pipeline.tokenizer.display_tokens(tokens.ids))}"
    return _single_pass(title, run_trace(pipeline.model, torch.tensor([tokens.ids]), values=values))


def _load(
    model: str, target: str | None, languages: "Languages"
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    from clearhead.pipelines.text_encoder import TextEncoder

    loaded = load(model, *languages)
    if target is not None and isinstance(loaded[0], TextEncoder):
        raise ValueError(f"{model} is an encoder; --target is only for encoder–decoders")
    return loaded


def _trace_random_seq2seq(text: str | None, target: str | None, values: bool) -> "TraceResult":
    import torch

    from clearhead.inspection.trace.seq2seq import shorten, teacher_forced
    from clearhead.models.config import Seq2SeqConfig
    from clearhead.models.seq2seq import Seq2Seq

    if text is None and target is not None:
        raise ValueError("--target requires a text as its source")
    torch.manual_seed(0)
    if text is None:
        vocab_size, about = 1000, ("30 x 200 random tokens", "30 x 100 random tokens")
        ids, target_ids = torch.randint(vocab_size, (30, 200)), torch.randint(vocab_size, (30, 100))
    else:
        source, words = _split_words(text), ["<s>", *_split_words(text if target is None else target)]
        vocabulary = _vocabulary([*words, *source])
        vocab_size, about = len(vocabulary), (shorten(source), shorten(words))
        ids, target_ids = (torch.tensor([[vocabulary[word] for word in row]]) for row in (source, words))
    config = Seq2SeqConfig(
        vocab_size=vocab_size,
        d_model=D_MODEL,
        ffn_hidden=HIDDEN,
        num_heads=HEADS,
        drop_prob=DROP,
        num_layers=LAYERS,
        max_len=max(5000, ids.shape[1], target_ids.shape[1]),
        eos_ids=(),
    )
    model = Seq2Seq(config).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return (
        "encoder–decoder with random weights",
        teacher_forced(model, ids, target_ids, about, values=values),
        parameters,
    )


def _trace_random_encoder(text: str | None, values: bool) -> "TraceResult":
    import torch

    from clearhead.inspection.trace.seq2seq import shorten
    from clearhead.inspection.trace.trace import trace as run_trace
    from clearhead.models.config import EncoderConfig
    from clearhead.models.encoder import EncoderModel
    from clearhead.stacks.encoder import Encoder

    torch.manual_seed(0)
    if text is None:
        stack = Encoder(D_MODEL, HIDDEN, HEADS, DROP, LAYERS).eval()
        title = f"Encoder({D_MODEL}, {HIDDEN}, {HEADS}, {DROP}, {LAYERS}) on 30 x 200 x {D_MODEL} random numbers"
        return _single_pass(title, run_trace(stack, torch.randn(30, 200, D_MODEL), values=values))
    words = _split_words(text)
    vocabulary = _vocabulary(words)
    config = EncoderConfig(vocab_size=len(vocabulary), num_layers=LAYERS, max_len=max(5000, len(words)))
    ids = torch.tensor([[vocabulary[word] for word in words]])
    model = EncoderModel(config).eval()
    return _single_pass(f"encoder with random weights: {shorten(words)}", run_trace(model, ids, values=values))


def _single_pass(title: str, trace: "Trace") -> "TraceResult":
    from clearhead.inspection.trace.seq2seq import ForwardPass

    return title, [ForwardPass(trace)], sum(step.parameters for step in trace.steps)


def _split_words(text: str) -> list[str]:
    words = text.split()
    if not words:
        raise ValueError("the text has no words; without --model, words are separated by whitespace")
    return words


def _vocabulary(words: list[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate(dict.fromkeys(words))}
