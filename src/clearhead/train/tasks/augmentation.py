"""Augmentation as a recipe says it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from clearhead.data import augmentation
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.base import MultilingualTokenizer, TextTokenizer
from clearhead.train.recipe.recipe import Augmentation

Ids = Sequence[int] | Int[np.ndarray, " _"]


def augmented(
    texts: Sequence[Ids],
    told: Augmentation | None,
    draws: np.random.Generator,
    tokenizer: TextTokenizer,
    vocab_size: int,
) -> Sequence[Ids]:
    """Texts with their tokens changed: first their order, then which they are. Special tokens stay.

    Args:
        texts: ids of each text.
        told: what is changed, and how often; None for nothing.
        draws: where chance comes from.
        tokenizer: it knows the mask token, or the unknown one where there is none, and what is special.
        vocab_size: random tokens are below it.
    """
    if told is None:
        return texts
    kept = tokenizer.special_ids
    mask = _mask_id(tokenizer) if told.token_masking or told.span_masking else 0
    changed = []
    for text in texts:
        ids: Int[np.ndarray, " L"] = np.asarray(text, dtype=np.int64)
        if told.token_deletion:
            ids = augmentation.token_deletion(ids, draws, rate=told.token_deletion, protected=kept)
        if told.token_swapping:
            ids = augmentation.token_swapping(ids, draws, rate=told.token_swapping, protected=kept)
        if told.shuffling:
            ids = augmentation.local_shuffle(ids, draws, distance=told.shuffling, protected=kept)
        if told.noise:
            ids = augmentation.token_replacement(ids, draws, vocab_size=vocab_size, rate=told.noise, protected=kept)
        if told.token_masking:
            ids = augmentation.token_masking(ids, draws, mask_id=mask, rate=told.token_masking, protected=kept)
        if told.span_masking:
            ids = augmentation.span_masking(ids, draws, mask_id=mask, rate=told.span_masking, protected=kept)
        changed.append(ids)
    return changed


def _mask_id(tokenizer: TextTokenizer) -> int:
    assert isinstance(tokenizer, MultilingualTokenizer)
    for role, default in (("mask", "[MASK]"), ("unk", "<unk>")):
        number = tokenizer.token_id(special_tokens.special_token(tokenizer.config, role, default))
        if number is not None:
            return number
    raise ValueError("regularize.augmentation masks tokens, but the tokenizer has neither a mask nor an unknown token")
