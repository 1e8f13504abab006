"""`clearhead trace`: every step of a forward pass."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import options
from clearhead.cli.steps import print_steps

if TYPE_CHECKING:
    from clearhead.see.steps import Trace


def trace(
    text: Annotated[str | None, typer.Argument(help="A text; without one, random numbers (30 x 200 x 512).")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="A model's folder or Hub id; fresh weights without it."),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Mean, spread and extremes of each step.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show every step of a forward pass: its equation, its named shape, its parameters.

    With no arguments: an encoder of 5 layers (d_model 512, 8 heads, 2048) on random numbers, seed 0.
    With a text: its whitespace words, freshly embedded, with sinusoids, through that encoder.
    With --model: the model's own tokenizer and weights.
    """
    import torch

    with torch.no_grad():
        title, seen = _run(text, model, values)
    if as_json:
        typer.echo(json.dumps([step.as_dict() for step in seen.steps], ensure_ascii=False))
        return
    from rich.console import Console

    # a file has no width of its own: wide enough that no equation breaks
    print_steps(Console(width=None if sys.stdout.isatty() else 200), title, seen.steps)


def _run(text: str | None, model: str | None, values: bool) -> "tuple[str, Trace]":
    import torch

    from clearhead.models.config import EncoderConfig
    from clearhead.models.encoder import EncoderModel
    from clearhead.see.trace import trace as run_trace
    from clearhead.stacks.encoder import Encoder

    if model is not None:
        from clearhead.run.encode import TextEncoder

        encoder = TextEncoder.from_pretrained(model, precision="float32", device="cpu")
        (tokens,) = encoder.tokenize(["" if text is None else text])
        title = f"{model}: {_shortened(encoder.tokenizer.words(tokens.ids))}"
        return title, run_trace(encoder.model, torch.tensor([tokens.ids]), values=values)
    torch.manual_seed(0)
    if text is None:
        stack = Encoder(512, 2048, 8, 0.1, 5).eval()
        return "Encoder(512, 2048, 8, 0.1, 5) on 30 x 200 x 512 random numbers", run_trace(
            stack, torch.randn(30, 200, 512), values=values
        )
    words = text.split()
    if not words:
        raise ValueError("the text has no words; without a model, words are what stands between blanks")
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    config = EncoderConfig(vocab_size=len(vocabulary), num_layers=5, max_len=max(5000, len(words)))
    ids = torch.tensor([[vocabulary[word] for word in words]])
    fresh = EncoderModel(config).eval()
    return f"a fresh encoder: {_shortened(words)}", run_trace(fresh, ids, values=values)


def _shortened(words: list[str]) -> str:
    return " ".join(words[:24]) + (f" … ({len(words)} tokens)" if len(words) > 24 else "")
