"""Trace the passes of an encoder–decoder: the source once, then the target."""

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

DECODER_STEPS = 3
"""Decoded tokens: enough to fill a cache, read it, and append to it twice."""
_MAX_TOKENS = 24


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass of a model, or of its encoder or decoder.

    Args:
        trace: the steps.
        name: such as "encoder" or "decoder step 2"; "" for a model with one pass.
        about: input and output of the pass, as text.
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
    """Trace the encoder on a source and the decoder on a whole target in one pass, as in training.

    Args:
        model: the model.
        ids: source ids, as in `Seq2Seq`.
        target_ids: target ids with the start token, as in `Seq2Seq`.
        about: descriptions of source and target.
        values: as in `trace`.
    """
    encoded = traced(model, lambda: model.encode(ids), values=values)
    decoded = traced(model, lambda: model.decode(target_ids, encoded.output), values=values)
    return [ForwardPass(encoded, "encoder", about[0]), ForwardPass(decoded, "decoder", about[1])]


def trace_text(
    text_to_text: TextToText,
    text: str,
    target: str | None = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    values: bool = False,
) -> list[ForwardPass]:
    """Trace the encoder on a text, and the decoder on a target or on the first tokens of greedy search.

    Greedy search decodes three tokens with caches, one in each pass, even if the output ends before.

    Args:
        text_to_text: the model with its tokenizer.
        text: the source.
        target: a target for one pass, as in `teacher_forced`.
        source_lang, target_lang: languages, for models that need them.
        values: as in `trace`.
    """
    model, words = text_to_text.model, text_to_text.tokenizer.display_tokens
    settings, prepared = text_to_text.prepare(
        text, source_lang=source_lang, target_lang=target_lang, prefix=target or ""
    )
    source, prompt = prepared.source.ids, prepared.source.decoder_prefix
    ids, prompt_ids = torch.tensor([source]), torch.tensor([prompt])
    if target is not None:
        about = shorten(words(source)), shorten(words(prompt))
        return teacher_forced(model, ids, prompt_ids, about, values=values)
    keep = torch.ones_like(ids, dtype=torch.bool)
    encoded = traced(model, lambda: DecodingState(model, ids, keep, prompt_ids), values=values)
    passes = [ForwardPass(encoded, "encoder", shorten(words(source)))]
    limit = settings.max_target_length(len(prompt), model.config.max_len)
    changes = logits_processors(settings, len(prompt), limit, resolve_eos_ids(model, settings))
    tokens = next_tokens(encoded.output, changes, argmax, limit, eos_ids=())
    last = prompt[-1]
    for number in range(1, DECODER_STEPS + 1):
        step = traced(model, lambda: next(tokens, None), values=values)
        if step.output is None:
            break
        passes.append(ForwardPass(step, f"decoder step {number}", " → ".join(words([last, step.output.id]))))
        last = step.output.id
    return passes


def shorten(words: Sequence[str]) -> str:
    """Return the first tokens of a text, and the number of tokens if there are more."""
    rest = f" … ({len(words)} tokens)" if len(words) > _MAX_TOKENS else ""
    return " ".join(words[:_MAX_TOKENS]) + rest
