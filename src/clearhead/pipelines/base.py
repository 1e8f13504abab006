"""Base class of the pipelines, and their truncation warnings."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import nn

from clearhead.generation.config import GenerationOptions
from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderClassifier, SpanClassifier
from clearhead.runtime.device import choose_device
from clearhead.runtime.inference_copy import inference_copy
from clearhead.runtime.int8.calibration import calibrate_encoder
from clearhead.runtime.int8.files import Int8Source
from clearhead.runtime.precision import Precision, choose_precision
from clearhead.tokenizers.base import TextTokenizer
from clearhead.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)

M = TypeVar("M", bound=nn.Module)
E = TypeVar("E", EncoderModel, EncoderClassifier, SpanClassifier)

_NAMED = 5
"""Number of texts that a warning lists."""


class GenerateKeywords(GenerationOptions, total=False):
    """Keywords of `TextToText.generate` that do not change the type of its result."""

    source_lang: str | None
    target_lang: str | None
    prefixes: Sequence[str] | None
    strict: bool


class Pipeline(Generic[M]):
    """A model with its tokenizer, from texts to results. Its `repr` shows model, size, precision and device.

    Attributes:
        name: the name or folder that the model was loaded from.
        model: the model, in float32.
        precision, device: precision and device of the computation.
        int8: source of the 8-bit weights.
    """

    name: str
    model: M
    precision: Precision
    device: torch.device
    int8: Int8Source

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return (
            f"{type(self).__name__}({self.name!r}, {size / 1e6:.1f}M parameters, {self.precision.name}, {self.device})"
        )


def prepare_inference(
    model: E,
    tokenizer: Tokenizer,
    max_length: int | None,
    *,
    precision: str,
    device: str,
    int8_weights: Path | None = None,
    compile: bool = False,
) -> tuple[torch.device, Precision, Int8Source, E]:
    """Return the device, the precision and the 8-bit weights of a pipeline, and the copy of its model that computes.

    Args:
        model: the encoder, or the encoder with a head, in float32.
        tokenizer: its tokenizer.
        max_length: maximum number of tokens of a calibration text.
        precision, device, int8_weights, compile: as in `TextEncoder`.

    Raises:
        ValueError: as in `TextEncoder`.
    """
    encoder = model if isinstance(model, EncoderModel) else model.encoder
    chosen = choose_device(device)
    rounding = choose_precision(precision, chosen, model, int8_weights, compile=compile)
    int8 = Int8Source(partial(calibrate_encoder, encoder, tokenizer, max_length), int8_weights)
    return chosen, rounding, int8, inference_copy(model, rounding, chosen, int8, compile=compile)


def check_room(folder: Path, tokenizer: TextTokenizer | Tokenizer, max_length: int | None, *, texts: int = 1) -> None:
    """Check that the inputs of a model have room for a token of each text.

    Args:
        folder: the model folder, for the message.
        tokenizer: its tokenizer.
        max_length: the maximum number of tokens of an input; None for no limit.
        texts: the number of texts in an input, 1 or 2.

    Raises:
        ValueError: the special tokens leave no room.
    """
    if texts == 2 and isinstance(tokenizer, Tokenizer):
        special = tokenizer.backend.num_special_tokens_to_add(is_pair=True)
    else:
        special = len(tokenizer.encode([""])[0].ids)
    if max_length is not None and max_length < special + texts:
        raise ValueError(
            f"{folder}: the model takes {max_length} tokens, of which {special} are special tokens; expected at least "
            f"{special + texts}. Correct model_max_length in tokenizer_config.json, max_seq_length in "
            "sentence_bert_config.json or the positions in config.json"
        )


def warn_truncated(truncated: Sequence[bool], limit: int | None, fix: str, noun: str = "text") -> None:
    """Log one warning if texts of a call were truncated.

    Args:
        truncated: whether each text was truncated.
        limit: the maximum number of tokens.
        fix: what the user can do.
        noun: what a text is called.
    """
    indices = [str(index) for index, was_truncated in enumerate(truncated) if was_truncated]
    if indices:
        rest = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
        which = f"{noun} {', '.join(indices[:_NAMED])}{rest}"
        counts = f"{len(indices)} of {len(truncated)} {noun}s"
        log.warning("%s were truncated to %s tokens (%s). %s", counts, limit, which, fix)
