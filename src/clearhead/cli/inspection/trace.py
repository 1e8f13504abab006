"""`clearhead trace`: every step of a forward pass."""

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
    Shown = tuple[str, list[ForwardPass], int]  # a title, the passes, and how many parameters the model has

D_MODEL, HIDDEN, HEADS, DROP, LAYERS = 512, 2048, 8, 0.1, 5


def trace(
    text: Annotated[str | None, typer.Argument(help="A text; without one, random numbers (30 x 200 x 512).")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="A model's folder or Hub id; fresh weights without it."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="For encoder–decoders: a target, decoded in one pass (teacher forcing)."),
    ] = None,
    source_lang: options.SourceLang = None,
    target_lang: options.TargetLang = None,
    seq2seq: Annotated[bool, typer.Option("--seq2seq", help="Without --model: a fresh encoder–decoder.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Mean, spread and extremes of each step.")] = False,
    attention: Annotated[
        str | None,
        typer.Option(metavar="LAYER.HEAD", help="With --model: in place of the steps, what this head looks at."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show every step of a forward pass: its equation, its named shape, its parameters.

    With no arguments: an encoder of 5 layers (d_model 512, 8 heads, 2048) on random numbers, seed 0.
    With a text: its whitespace words, freshly embedded, with sinusoids, through that encoder.
    With --seq2seq: the same, with a decoder of that size on a target, the text's words where none is given.
    With --model: the model's own tokenizer and weights. An encoder–decoder encodes the text, then decodes three tokens
    greedily, step by step with caches; or the target.
    With --attention: for each token those that one head gives most weight to; with --json, all weights.
    """
    import torch

    languages = source_lang, target_lang
    if languages != (None, None) and model is None:
        raise ValueError("--source-lang and --target-lang are for a --model: a fresh one knows no languages")
    if attention is not None:
        _show_head(attention, text, model, target, languages, as_json)
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

    # a file has no width of its own: wide enough that no equation breaks
    print_steps(Console(width=None if sys.stdout.isatty() else 200), title, passes, parameters)


def _show_head(
    asked: str, text: str | None, model: str | None, target: str | None, languages: "Languages", as_json: bool
) -> None:
    if model is None or text is None:
        raise ValueError("--attention needs a text and a --model: fresh weights look at nothing")
    layer, _, head = asked.partition(".")
    if not (layer.isdecimal() and head.isdecimal()):
        raise ValueError(f"--attention is LAYER.HEAD, such as 0.3, both from 0; got {asked!r}")
    from clearhead.inspection.attention.head import head_attention

    made, source_lang, target_lang = _loaded(model, target, languages)
    found = head_attention(made, text, int(layer), int(head), target, source_lang=source_lang, target_lang=target_lang)
    if as_json:
        typer.echo(json.dumps([one.as_dict() for one in found], ensure_ascii=False))
        return
    for number, one in enumerate(found):
        typer.echo(("\n" if number else "") + f"{one.part}, layer {layer}, head {head}")
        for line in one.lines():
            typer.echo(f"  {line}")


def _run(
    text: str | None, model: str | None, target: str | None, languages: "Languages", seq2seq: bool, values: bool
) -> "Shown":
    if model is not None and seq2seq:
        raise ValueError("--seq2seq shows a fresh encoder–decoder; with --model, the model's own files say what it is")
    if model is not None:
        return _of_checkpoint("" if text is None else text, model, target, languages, values)
    if seq2seq:
        return _fresh_seq2seq(text, target, values)
    if target is not None:
        raise ValueError("--target is for encoder–decoders: add --seq2seq, or --model with one")
    return _fresh_encoder(text, values)


def _of_checkpoint(text: str, model: str, target: str | None, languages: "Languages", values: bool) -> "Shown":
    import torch

    from clearhead.inspection.trace.seq2seq import shorten, trace_text
    from clearhead.inspection.trace.trace import trace as run_trace
    from clearhead.pipelines.text_to_text import TextToText

    made, source_lang, target_lang = _loaded(model, target, languages)
    if isinstance(made, TextToText):
        parameters = sum(parameter.numel() for parameter in made.model.parameters())
        shown = trace_text(made, text, target, source_lang=source_lang, target_lang=target_lang, values=values)
        return model, shown, parameters
    (tokens,) = made.tokenize([text])
    title = f"{model}: {shorten(made.tokenizer.display_tokens(tokens.ids))}"
    return _single(title, run_trace(made.model, torch.tensor([tokens.ids]), values=values))


def _loaded(
    model: str, target: str | None, languages: "Languages"
) -> "tuple[TextEncoder | TextToText, str | None, str | None]":
    from clearhead.pipelines.text_encoder import TextEncoder

    found = load(model, *languages)
    if target is not None and isinstance(found[0], TextEncoder):
        raise ValueError(f"{model} is an encoder, which decodes no --target")
    return found


def _fresh_seq2seq(text: str | None, target: str | None, values: bool) -> "Shown":
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
        vocabulary = _numbered([*words, *source])
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
    fresh = Seq2Seq(config).eval()
    parameters = sum(parameter.numel() for parameter in fresh.parameters())
    return "a fresh encoder–decoder", teacher_forced(fresh, ids, target_ids, about, values=values), parameters


def _fresh_encoder(text: str | None, values: bool) -> "Shown":
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
    vocabulary = _numbered(words)
    config = EncoderConfig(vocab_size=len(vocabulary), num_layers=LAYERS, max_len=max(5000, len(words)))
    ids = torch.tensor([[vocabulary[word] for word in words]])
    fresh = EncoderModel(config).eval()
    return _single(f"a fresh encoder: {shorten(words)}", run_trace(fresh, ids, values=values))


def _single(title: str, seen: "Trace") -> "Shown":
    from clearhead.inspection.trace.seq2seq import ForwardPass

    return title, [ForwardPass(seen)], sum(step.parameters for step in seen.steps)


def _words(text: str) -> list[str]:
    words = text.split()
    if not words:
        raise ValueError("the text has no words; without a model, words are what stands between blanks")
    return words


def _numbered(words: list[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(words))}
