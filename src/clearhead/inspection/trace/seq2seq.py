"""The passes of an encoder–decoder, each with a trace of its own: the source once, then the target."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead.generation.greedy import argmax, next_tokens
from clearhead.generation.logits_processors import logits_processors
from clearhead.generation.state import DecodingState
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.inspection.trace.records import Trace
from clearhead.inspection.trace.trace import traced
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.text_to_text import TextToText

STEPS = 3
"""Tokens that are decoded: enough to see a cache filled, read, and grown twice."""


@dataclass(frozen=True)
class ForwardPass:
    """One run through a model, or through half of it.

    Args:
        trace: its steps.
        name: such as "encoder" or "decoder step 2"; "" where there is only one pass.
        about: what went in, and came out.
    """

    trace: Trace
    name: str = ""
    about: str = ""


def teacher_forced(
    model: Seq2Seq,
    ids: Int[Tensor, "B M"],
    target_ids: Int[Tensor, "B L"],
    about: tuple[str, str] = ("", ""),
    *,
    values: bool = False,
) -> list[ForwardPass]:
    """The source through the encoder, and a whole target through the decoder at once, as in training.

    Args:
        model: the model.
        ids, target_ids: as in `Seq2Seq`; the target from its start token on.
        about: what source and target are, for people.
        values: as in `trace`.
    """
    encoded = traced(model, lambda: model.encode(ids), values=values)
    decoded = traced(model, lambda: model.decode(target_ids, encoded.output), values=values)
    return [ForwardPass(encoded, "encoder", about[0]), ForwardPass(decoded, "decoder", about[1])]


def of_text(
    text_to_text: TextToText,
    text: str,
    target: str | None = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    values: bool = False,
) -> list[ForwardPass]:
    """A text through the encoder, and a target through the decoder: the one given, or what the model says greedily.

    What it says is shown for its first tokens only, also where it would end before, each in a pass with caches.

    Args:
        text_to_text: the model with its tokenizer.
        text: the source.
        target: a target for one pass, as in `teacher_forced`.
        source_lang, target_lang: for models that are told them.
        values: as in `trace`.
    """
    model, words = text_to_text.model, text_to_text.tokenizer.display_tokens
    settings, given = text_to_text.prepare(text, source_lang=source_lang, target_lang=target_lang, prefix=target or "")
    source, prompt = given.source.ids, given.source.decoder_prefix
    ids, prompt_ids = torch.tensor([source]), torch.tensor([prompt])
    if target is not None:
        about = shortened(words(source)), shortened(words(prompt))
        return teacher_forced(model, ids, prompt_ids, about, values=values)
    keep = torch.ones_like(ids, dtype=torch.bool)
    encoded = traced(model, lambda: DecodingState(model, ids, keep, prompt_ids), values=values)
    passes = [ForwardPass(encoded, "encoder", shortened(words(source)))]
    limit = settings.max_target_length(len(prompt), model.config.max_len)
    changes = logits_processors(settings, len(prompt), limit, resolve_eos_ids(model, settings))
    tokens = next_tokens(encoded.output, changes, argmax, limit, eos_ids=())
    last = prompt[-1]
    for number in range(1, STEPS + 1):
        step = traced(model, lambda: next(tokens, None), values=values)
        if step.output is None:
            break
        passes.append(ForwardPass(step, f"decoder step {number}", " → ".join(words([last, step.output.id]))))
        last = step.output.id
    return passes


def shortened(words: Sequence[str]) -> str:
    """The first words of a text, and how many there are."""
    return " ".join(words[:24]) + (f" … ({len(words)} tokens)" if len(words) > 24 else "")
