"""Augmentation of the training examples: changed input tokens, and reversed pairs."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import BeforeValidator, Field

from clearhead.data import augmentation
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.base import MultilingualTokenizer, TextTokenizer
from clearhead.train.recipe.sections import Probability, RecipeBase, Section
from clearhead.train.regularizers.base import Ablation, Conflicts, Regularizer, TaskTraits, false_to_none
from clearhead.train.tasks.predictions import TokenPredictions

Ids = Sequence[int] | Int[np.ndarray, " _"]


class Augmentation(Section):
    """Random changes of the examples, different in each epoch; targets do not change, except by `bidirectional`.

    Span answers allow the changes that keep each token's position. A masked language model has objective.mask_rate
    instead.

    Args:
        token_masking: share of tokens replaced with the mask (or unknown) token.
        token_swapping: probability of swapping two neighboring tokens.
        span_masking: share of tokens masked in spans of 3 on average.
        local_shuffle: maximum distance that a token moves.
        token_replacement: share of tokens replaced with random ones.
        token_deletion: share of tokens deleted.
        bidirectional: share of the training, from its start on, with half of the pairs reversed: the target becomes the
            source (text-to-text only; Ding et al. 2021, who have 1/3).
    """

    token_masking: Probability = 0.0
    token_swapping: Probability = 0.0
    span_masking: Probability = 0.0
    local_shuffle: Annotated[int, Field(ge=0)] = 0
    token_replacement: Probability = 0.0
    token_deletion: Probability = 0.0
    bidirectional: Annotated[float, Field(ge=0, le=1)] = 0.0


def augment(
    texts: Sequence[Ids],
    settings: Augmentation | None,
    generator: np.random.Generator,
    tokenizer: TextTokenizer,
    vocab_size: int,
) -> Sequence[Ids]:
    """Return texts with changed tokens: first their order, then their ids. Special tokens stay.

    Args:
        texts: ids of each text.
        settings: what to change and how often; None changes nothing.
        generator: source of random numbers.
        tokenizer: provides the mask token, or the unknown token as a fallback, and the special tokens.
        vocab_size: upper bound of random ids.
    """
    if settings is None:
        return texts
    protected = tokenizer.special_ids
    mask_id = _mask_id(tokenizer) if settings.token_masking or settings.span_masking else 0
    augmented = []
    for text in texts:
        ids: Int[np.ndarray, " L"] = np.asarray(text, dtype=np.int64)
        if rate := settings.token_deletion:
            ids = augmentation.token_deletion(ids, generator, rate=rate, protected=protected)
        if rate := settings.token_swapping:
            ids = augmentation.token_swapping(ids, generator, rate=rate, protected=protected)
        if distance := settings.local_shuffle:
            ids = augmentation.local_shuffle(ids, generator, distance=distance, protected=protected)
        if rate := settings.token_replacement:
            ids = augmentation.token_replacement(ids, generator, vocab_size=vocab_size, rate=rate, protected=protected)
        if rate := settings.token_masking:
            ids = augmentation.token_masking(ids, generator, mask_id=mask_id, rate=rate, protected=protected)
        if rate := settings.span_masking:
            ids = augmentation.span_masking(ids, generator, mask_id=mask_id, rate=rate, protected=protected)
        augmented.append(ids)
    return augmented


def reverse_pairs(
    examples: Sequence[Any],
    settings: Augmentation | None,
    generator: np.random.Generator,
    progress: float,
) -> Sequence[Any]:
    """Exchange source and target in a random half of the pairs, in the first part of the training.

    Source: Ding et al. 2021, "Improving Neural Machine Translation by Bidirectional Training"

    Args:
        examples: a mapping with the ids of source and target for each pair.
        settings: what to change; None changes nothing.
        generator: source of random numbers.
        progress: the finished share of the training.
    """
    if settings is None or progress >= settings.bidirectional:
        return examples
    reverse = generator.random(len(examples)) < 0.5
    return [
        {"source": example["target"], "target": example["source"]} if reversed_ else example
        for example, reversed_ in zip(examples, reverse, strict=True)
    ]


def _mask_id(tokenizer: TextTokenizer) -> int:
    assert isinstance(tokenizer, MultilingualTokenizer)
    for role, default in (("mask", "[MASK]"), ("unk", "<unk>")):
        token_id = tokenizer.token_id(special_tokens.special_token(tokenizer.config, role, default))
        if token_id is not None:
            return token_id
    raise ValueError("regularize.augmentation masks tokens, but the tokenizer has neither a mask nor an unknown token")


def _conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    settings = recipe.regularize.augmentation
    if settings is None or not settings.bidirectional:
        return
    key = "regularize.augmentation.bidirectional"
    if task.predicts is not TokenPredictions or not task.generates:
        yield key, f"reverses pairs of source and target, which {recipe.task} does not have"
    elif recipe.objective.prefix or recipe.objective.source_lang or recipe.objective.target_lang:
        yield key, "reverses pairs, which a prefix or languages in the objective do not allow"


AUGMENTATION = Regularizer(
    name="augmentation",
    value_type=Annotated[Augmentation | None, BeforeValidator(false_to_none)],
    default=None,
    meaning="random changes of the training examples.",
    equation="source tokens are masked, swapped, shuffled, deleted or replaced, differently in each epoch; pairs are "
    "reversed in the first part of the training",
    without="texts are unchanged",
    source="Joshi et al. 2019; Lample et al. 2018; Ding et al. 2021",
    code="data/augmentation.py",
    ablation=Ablation(off={"augmentation": None}, on={"augmentation": {"token_masking": 0.1}}),
    conflicts=_conflicts,
)
