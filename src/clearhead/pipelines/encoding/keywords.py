"""Keywords of `TextEncoder.encode`."""

import logging
from collections.abc import Mapping
from typing import Literal, TypedDict

from clearhead.choices import check_choice
from clearhead.pipelines.encoding.quantization import VECTOR_PRECISIONS, VectorPrecision

log = logging.getLogger(__name__)

ENCODE_HINTS = {
    "output_value": 'Use pooling="tokens" for one vector per token',
    "device": "Choose the device when the model is loaded: TextEncoder.from_pretrained(..., device=...)",
    "pool": "Use `clearhead encode --engine ray` for several machines",
    "num_proc": "All threads of PyTorch are used; see torch.set_num_threads",
    "return_tensors": "Use convert_to_tensor=True",
    "truncation": "Texts are truncated at max_length, and a warning counts them",
}
"""Keywords of other libraries that this library names differently or does not have."""


class EncodeKeywords(TypedDict, total=False):
    """Keywords of `TextEncoder.encode` that do not change the type of its result."""

    normalize: bool | None
    max_length: int | None
    batch_tokens: int | None
    prompt: str | None
    prompt_name: str | None
    truncate_dim: int | None
    show_progress: bool
    batch_size: int | None
    normalize_embeddings: bool
    show_progress_bar: bool | None
    convert_to_numpy: Literal[True]


def choose_normalization(normalize: bool | None, normalize_embeddings: bool) -> bool | None:
    """Return whether vectors are scaled to length 1, from our keyword and that of sentence-transformers.

    Raises:
        ValueError: the keywords contradict each other.
    """
    if normalize_embeddings and normalize is False:
        raise ValueError("normalize=False contradicts normalize_embeddings=True; give one of them")
    return normalize_embeddings or normalize


def choose_prompt(prompts: Mapping[str, str], prompt: str | None, prompt_name: str | None) -> str | None:
    """Return the prompt, from our keyword and that of sentence-transformers.

    Args:
        prompts: the model's prompts by name.
        prompt: name or text of a prompt, which takes precedence over prompt_name.
        prompt_name: name of a prompt.

    Raises:
        ValueError: the model has no prompt of this name.
    """
    if prompt is not None or prompt_name is None:
        if prompt_name is not None:
            log.warning("prompt_name=%r is not used, because prompt is given. Give one of them", prompt_name)
        return prompt
    if not prompts:
        raise ValueError(f"the model has no prompts; got prompt_name={prompt_name!r:.60}. Give the text with prompt")
    check_choice("prompt_name", prompt_name, tuple(prompts))
    return prompt_name


def choose_batch_tokens(batch_tokens: int | None, batch_size: int | None, limit: int, default: int) -> int | None:
    """Return the number of tokens in a batch, from our keyword and that of sentence-transformers.

    Args:
        batch_tokens: number of tokens; None for the default.
        batch_size: number of texts; None for no such limit.
        limit: maximum number of tokens of a text.
        default: default number of tokens of the device.

    Raises:
        ValueError: batch_size is below 1.
    """
    if batch_size is None:
        return batch_tokens
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    return min(default, batch_size * limit)


def check_vector_precision(precision: str | None, pooling: str | None) -> VectorPrecision:
    """Return the precision of the vectors; None is float32.

    Raises:
        ValueError: an unknown precision, or vectors of tokens, which are in float32 only.
    """
    if precision is None:
        return "float32"
    if precision not in VECTOR_PRECISIONS:
        choices = ", ".join(VECTOR_PRECISIONS)
        raise ValueError(
            f"precision of encode() is that of the vectors: {choices}; got {precision!r:.60}. The precision of the "
            "computation is chosen when the model is loaded: TextEncoder.from_pretrained(..., precision=...)"
        )
    if pooling == "tokens" and precision != "float32":
        raise ValueError(f'pooling="tokens" gives vectors in float32; got precision={precision!r}')
    return precision
