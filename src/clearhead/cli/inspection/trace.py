"""`clearhead trace`: print every step of a forward pass."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.inspection.load import load
from clearhead.cli.inspection.trace_table import print_steps

if TYPE_CHECKING:
    from clearhead.inspection.trace.records import Trace
    from clearhead.inspection.trace.seq2seq import ForwardPass
    from clearhead.pipelines.text_encoder import TextEncoder
    from clearhead.pipelines.text_to_text import TextToText

    Languages = tuple[str | None, str | None]  # source and target
    Result = tuple[str, list[ForwardPass], int]  # title, passes and number of parameters

D_MODEL, HIDDEN, HEADS, DROP, LAYERS = 512, 2048, 8, 0.1, 5


def trace(
    text: Annotated[str | None, typer.Argument(help="Text to trace. By default random input (30 x 200 x 512).")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="Folder or Hub id of a model. By default random weights."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Target of an encoder–decoder, decoded in one pass (teacher forcing)."),
    ] = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    seq2seq: Annotated[bool, typer.Option("--seq2seq", help="Without --model: use a random encoder–decoder.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="Print mean, standard deviation, minimum and maximum of each step.")
    ] = False,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER.HEAD", help="With --model: print the attention weights of this head instead of the steps."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print every step of a forward pass: equation, named shape and number of parameters.

    Without arguments: an encoder of 5 layers (d_model 512, 8 heads, 2048) on random input with seed 0.
    With a text: its words, split at whitespace, with random embeddings and sinusoidal positions, through that encoder.
    With --seq2seq: the same with a decoder of that size. Its target is --target, or the words of the text.
    With --model: the tokenizer and weights of that model. An encoder–decoder encodes the text, then decodes the target,
    or three tokens by greedy search with caches.
    With --attention: the largest attention weights of one head for each token. With --json: all weights.
    """
    import torch

    languages = source_lang, target_lang
    if languages != (None, None) and model is None:
        raise ValueError("--source-lang and --target-lang need a --model")
    if attention is not None:
        _print_head(attention, text, model, target, languages, as_json)
        return
    with torch.no_grad():
        title, passes, parameters = _run(text, model, target, languages, seq2seq, values)
    if as_json:
        steps = [
            ({"pass": part.name} if part.name else {}) | step.as_dict() for part in passes for step in part.trace.steps
        ]
        typer.echo(json.dumps(steps, ensure_ascii=False))
        return
    from rich.console import Console

    # a file has no width: wide enough for every equation
    print_steps(Console(width=None if sys.stdout.isatty() else 200), title, passes, parameters)


def _print_head(
    layer_and_head: str, text: str | None, model: str | None, target: str | None, languages: "Languages", as_json: bool
) -> None:
    if model is None or text is None:
        raise ValueError("--attention needs a text and a --model")
    layer, _, head = layer_and_head.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ValueError(f"--attention must be LAYER.HEAD, such as 0.3, both from 0; got {layer_and_head!r}")
    from clearhead.inspection.attention.head import head_attention

    pipeline, source_lang, target_lang = _load(model, target, languages)
    heads = head_attention(
        pipeline, text, int(layer), int(head), target, source_lang=source_lang, target_lang=target_lang
    )
    if as_json:
        typer.echo(json.dumps([head_weights.as_dict() for head_weights in heads], ensure_ascii=False))
        return
    for index, head_weights in enumerate(heads):
        typer.echo(("\n" if index else "") + f"{head_weights.part}, layer {layer}, head {head}")
        for line in head_weights.lines():
            typer.echo(f"  {line}")


def _run(
    text: str | None, model: str | None, target: str | None, languages: "Languages", seq2seq: bool, values: bool
) -> "Result":
    if model is not None and seq2seq:
        raise ValueError("--seq2seq creates a random encoder–decoder: remove it, or remove --model")
    if model is not None:
        return _of_checkpoint("" if text is None else text, model, target, languages, values)
    if seq2seq:
        return _random_seq2seq(text, target, values)
    if target is not None:
        raise ValueError("--target needs an encoder–decoder: add --seq2seq, or --model with one")
    return _random_encoder(text, values)


def _of_checkpoint(text: str, model: str, target: str | None, languages: "Languages", values: bool) -> "Result":
    import torch

    from clearhead.inspection.trace.seq2seq import shorten, trace_text
    from clearhead.inspection.trace.trace import trace as run_trace
    from clearhead.pipelines.text_to_text import TextToText

    pipeline, source_lang, target_lang = _load(model, target, languages)
    if isinstance(pipeline, TextToText):
        parameters = sum(parameter.numel() for parameter in pipeline.model.parameters())
        shown = trace_text(pipeline, text, target, source_lang=source_lang, target_lang=target_lang, values=values)
        return model, shown, parameters
    (tokens,) = pipeline.tokenize([text])
    title = f"{model}: {shorten(pipeline.tokenizer.display_tokens(tokens.ids))}"
    return _single(title, run_trace(pipeline.model, torch.tensor([tokens.ids]), values=values))


def _load(
    model: str, target: str | None, languages: "Languages"
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    from clearhead.pipelines.text_encoder import TextEncoder

    loaded = load(model, *languages)
    if target is not None and isinstance(loaded[0], TextEncoder):
        raise ValueError(f"{model} is an encoder, which has no decoder: remove --target")
    return loaded


def _random_seq2seq(text: str | None, target: str | None, values: bool) -> "Result":
    import torch

    from clearhead.inspection.trace.seq2seq import shorten, teacher_forced
    from clearhead.models.config import Seq2SeqConfig
    from clearhead.models.seq2seq import Seq2Seq

    if text is None and target is not None:
        raise ValueError("a --target needs a text as its source")
    torch.manual_seed(0)
    if text is None:
        vocab_size, about = 1000, ("30 x 200 random tokens", "30 x 100 random tokens")
        ids, target_ids = torch.randint(vocab_size, (30, 200)), torch.randint(vocab_size, (30, 100))
    else:
        source, words = _words(text), ["<s>", *_words(text if target is None else target)]
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
    return "a random encoder–decoder", teacher_forced(model, ids, target_ids, about, values=values), parameters


def _random_encoder(text: str | None, values: bool) -> "Result":
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
        return _single(title, run_trace(stack, torch.randn(30, 200, D_MODEL), values=values))
    words = _words(text)
    vocabulary = _vocabulary(words)
    config = EncoderConfig(vocab_size=len(vocabulary), num_layers=LAYERS, max_len=max(5000, len(words)))
    ids = torch.tensor([[vocabulary[word] for word in words]])
    model = EncoderModel(config).eval()
    return _single(f"a random encoder: {shorten(words)}", run_trace(model, ids, values=values))


def _single(title: str, trace: "Trace") -> "Result":
    from clearhead.inspection.trace.seq2seq import ForwardPass

    return title, [ForwardPass(trace)], sum(step.parameters for step in trace.steps)


def _words(text: str) -> list[str]:
    words = text.split()
    if not words:
        raise ValueError("the text has no words; without a --model, words are split at whitespace")
    return words


def _vocabulary(words: list[str]) -> dict[str, int]:
    return {word: index for index, word in enumerate(dict.fromkeys(words))}
