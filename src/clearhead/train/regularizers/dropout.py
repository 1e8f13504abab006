"""Dropout and LayerDrop: rates of the model's config."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator

from clearhead.train.recipe.sections import Probability, RecipeBase, Section
from clearhead.train.regularizers.base import Ablation, Conflicts, Regularizer, TaskTraits


class Dropout(Section):
    """Dropout rates by position (Srivastava et al. 2014; Section 5.4 of "Attention Is All You Need").

    Args:
        attention: of the attention weights.
        feed_forward: inside the feed-forward networks, after the activation.
        residual: of a sublayer's output before the addition; also before the last layer of a classification head.
        embedding: of the summed embeddings.
    """

    attention: Probability = 0.0
    feed_forward: Probability = 0.0
    residual: Probability = 0.0
    embedding: Probability = 0.0


def expand_rate(value: object) -> object:
    """Convert a single rate to the rates of feed-forward, residual and embedding, as `drop_prob` of a layer."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"feed_forward": value, "residual": value, "embedding": value}
    return {} if value is False else value


def _dropout_config(rates: Dropout) -> Mapping[str, float]:
    return {
        "drop_prob": rates.residual,
        "attention_drop_prob": rates.attention,
        "activation_drop_prob": rates.feed_forward,
        "embedding_drop_prob": rates.embedding,
    }


DROPOUT = Regularizer(
    name="dropout",
    value_type=Annotated[Dropout, BeforeValidator(expand_rate)],
    default=Dropout(feed_forward=0.1, residual=0.1, embedding=0.1),
    meaning="rates by position, or one rate for feed-forward, residual and embedding.",
    equation="in training x ⊙ m / (1 − p), m ~ Bernoulli(1 − p), by position: attention weights, feed-forward, "
    "residual, embedding",
    without="p = 0",
    source="Srivastava et al. 2014; paper, 5.4",
    code="layers/dropout.py",
    ablation=Ablation(off={"dropout": False}, on={"dropout": 0.1}),
    config=_dropout_config,
)


def _layer_drop_conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    if recipe.training.fsdp and recipe.regularize.layer_drop:
        yield (
            "training.fsdp",
            "is incompatible with regularize.layer_drop: the processes would wait for a layer that one of them skips",
        )


LAYER_DROP = Regularizer(
    name="layer_drop",
    value_type=Probability,
    default=0.0,
    meaning="probability of skipping a layer in training (Fan et al. 2019). Together with residual dropout it "
    "regularizes the residual path.",
    equation="with `dropout.residual`: x + drop(f(x)), f skipped with probability p",
    without="x + f(x)",
    source="Huang et al. 2016; Fan et al. 2019",
    code="stacks/",
    ablation=Ablation(
        name="residual_path",
        off={"dropout.residual": 0.0, "layer_drop": 0.0},
        on={"dropout.residual": 0.1, "layer_drop": 0.1},
    ),
    conflicts=_layer_drop_conflicts,
    config=lambda rate: {"layer_drop": rate, "decoder_layer_drop": rate},
)
