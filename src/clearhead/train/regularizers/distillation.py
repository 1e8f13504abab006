"""Distillation: the loss follows the predictions of a teacher."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, TypeGuard, TypeVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from clearhead.equations import losses
from clearhead.kernels.linear_cross_entropy import chunked_vocabulary_loss, linear_soft_cross_entropy
from clearhead.layers.sampled_softmax import sample_vocabulary
from clearhead.train.recipe.sections import Count, ModelNames, RecipeBase, Section
from clearhead.train.regularizers.base import Ablation, Conflicts, LossInputs, Regularizer, TaskTraits, false_to_none
from clearhead.train.tasks.predictions import (
    ClassPredictions,
    EmbeddingPredictions,
    Prediction,
    ScorePredictions,
    TokenPredictions,
    TopTokens,
)

P = TypeVar("P", bound=Prediction)


class Distillation(Section):
    """Distillation from a teacher (Hinton et al. 2015; Kim and Rush 2016).

    Args:
        teacher: trained model of the same task, as a folder or a Hub id; with a list, the student learns the average
            of their probabilities, vectors or scores.
        temperature: divisor of the logits of student and teacher.
        weight: share of the loss that follows the teacher's probabilities; the rest follows the data.
        top_tokens: number of tokens per position. The teacher's most probable ones are computed once, before training,
            in place of the probabilities of all tokens in each update (Tan et al. 2019; text-to-text, with a
            temperature of 1).
        hidden_weight: factor of the mean squared distance between last hidden states, for a teacher of the same width.
        sequence_level: train on the teacher's outputs instead of the targets in the data (text-to-text, with
            `clearhead distill`).
        beam_size: beam size for the teacher's outputs.
    """

    teacher: ModelNames
    temperature: Annotated[float, Field(gt=0, le=1000)] = 2.0
    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    top_tokens: Count | None = None
    hidden_weight: Annotated[float, Field(ge=0)] = 0.0
    sequence_level: bool = False
    beam_size: Count = 5

    @property
    def teachers(self) -> list[str]:
        """All teachers."""
        return [self.teacher] if isinstance(self.teacher, str) else self.teacher


def distillation_loss(student: Prediction, teachers: Sequence[Prediction], temperature: float) -> Tensor:
    """Return the divergence from the teachers' average prediction, or the squared distance for embeddings and scores.

    Args:
        student, teachers: predictions of one batch.
        temperature: T.
    """
    sides = (student, *teachers)
    if _all_are(sides, TokenPredictions):
        weights, biases = _output_layers(sides, temperature)
        return chunked_vocabulary_loss(
            partial(losses.distillation, temperature=temperature),
            [side.output.scale_hidden(side.hidden_ND) for side in sides],
            weights,
            biases,
        )
    if _all_are(sides, ClassPredictions):
        return losses.distillation(*(side.logits_NC for side in sides), temperature=temperature)
    if _all_are(sides, ScorePredictions):
        scores, *others = (side.scores_N for side in sides)
        return losses.squared_error(scores, torch.stack(others).mean(dim=0))
    assert _all_are(sides, EmbeddingPredictions)
    unit_ND, *others = (torch.nn.functional.normalize(side.vectors_ND, dim=-1) for side in sides)
    return (unit_ND - torch.stack(others).mean(dim=0)).square().sum()


def _output_layers(
    sides: Sequence[TokenPredictions], temperature: float
) -> tuple[list[Tensor], Sequence[Tensor | None]]:
    """Return weight and bias of each output layer, for the tokens in the softmax of the student's loss."""
    student = sides[0]
    if student.num_sampled is None:
        return [side.output.tokens.weight for side in sides], [side.output.bias for side in sides]
    sampled = sample_vocabulary(student.targets_N, len(student.output.tokens.weight), student.num_sampled)
    weights, biases = zip(*(side.output.rows(sampled.ids_K) for side in sides), strict=True)
    # times T, because the loss divides all logits by T
    weight_of_sample_K = temperature * sampled.bias_K
    return list(weights), [weight_of_sample_K if bias is None else weight_of_sample_K + bias for bias in biases]


def _all_are(predictions: Sequence[Prediction], kind: type[P]) -> TypeGuard[Sequence[P]]:
    return all(isinstance(prediction, kind) for prediction in predictions)


def top_tokens_loss(student: Prediction, teacher: TopTokens, smoothing: float, weight: float) -> Tensor:
    """Return the loss with a teacher's most probable tokens in one pass over the vocabulary.

    Equation: L = (1 − w) CE + w KL(teacher ‖ student) = CE(q) − w H(teacher), where q is the mixture
        (1 − w) [(1 − ε) onehot(t) + ε / V] + w teacher, and H the entropy
    Source: Tan et al. 2019, "Multilingual Neural Machine Translation with Knowledge Distillation", Section 3.4

    Args:
        student: predictions of one batch.
        teacher: tokens of the same positions.
        smoothing: ε of label smoothing.
        weight: w.
    """
    assert isinstance(student, TokenPredictions)
    uniform = (1 - weight) * smoothing
    output, target_N1, p_NK = student.output, student.targets_N[:, None], teacher.probs_NK
    target_prob_N1 = p_NK.new_full(target_N1.shape, (1 - weight) * (1 - smoothing))
    loss = linear_soft_cross_entropy(
        output.scale_hidden(student.hidden_ND),
        output.tokens.weight,
        torch.cat([target_N1, teacher.ids_NK], dim=1),
        torch.cat([target_prob_N1, weight * p_NK], dim=1) / (1 - uniform),
        output.bias,
        smoothing=uniform,
    )
    entropy: Tensor = torch.special.entr(p_NK).sum()
    return loss - weight * entropy


def hidden_state_loss(student: Prediction, teacher: Prediction) -> Tensor:
    """Return the mean squared distance of last hidden states, summed over positions."""
    assert isinstance(student, TokenPredictions)
    assert isinstance(teacher, TokenPredictions)
    return losses.hidden_state_distance(student.hidden_ND, teacher.hidden_ND)


def _loss(inputs: LossInputs, loss: Callable[[], Tensor]) -> Tensor:
    settings: Distillation = inputs.regularize.distillation
    with torch.no_grad():
        teachers = inputs.predict_teachers()
    if isinstance(teachers, TopTokens):
        return top_tokens_loss(inputs.prediction, teachers, inputs.regularize.label_smoothing, settings.weight)
    from_data = loss()
    divergence = distillation_loss(inputs.prediction, teachers, settings.temperature)
    total = (1 - settings.weight) * from_data + settings.weight * divergence
    if settings.hidden_weight:
        total = total + settings.hidden_weight * hidden_state_loss(inputs.prediction, teachers[0])
    return total


def _conflicts(recipe: RecipeBase, task: TaskTraits) -> Conflicts:
    settings: Distillation | None = recipe.regularize.distillation
    if settings is None:
        return
    if settings.sequence_level and not task.generates:
        yield "regularize.distillation.sequence_level", f"requires a task that generates text, not {recipe.task}"
    if settings.hidden_weight and task.predicts is not TokenPredictions:
        yield "regularize.distillation.hidden_weight", f"requires a task that predicts tokens, not {recipe.task}"
    if settings.hidden_weight and settings.sequence_level:
        yield "regularize.distillation.hidden_weight", "the texts of a teacher have no hidden states; set it to 0"
    if settings.hidden_weight and len(settings.teachers) > 1:
        yield "regularize.distillation.hidden_weight", f"requires one teacher; got {len(settings.teachers)}"
    if settings.top_tokens is not None:
        for reason in _conflicts_of_top_tokens(recipe, settings, task):
            yield "regularize.distillation.top_tokens", reason


def _conflicts_of_top_tokens(recipe: RecipeBase, settings: Distillation, task: TaskTraits) -> Iterator[str]:
    augmentation = recipe.regularize.augmentation
    if not task.generates:
        yield f"requires a task that generates text, not {recipe.task}"
    elif recipe.objective.sampled_softmax is not None:
        yield "requires all tokens in the softmax; remove objective.sampled_softmax"
    if settings.sequence_level:
        yield "the texts of a teacher have no probabilities; set sequence_level to false"
    if settings.hidden_weight:
        yield "stores no hidden states; set hidden_weight to 0"
    if settings.temperature != 1:
        yield f"requires a temperature of 1; got {settings.temperature:g}"
    if recipe.regularize.r_drop:
        yield "has one pass through the model; set regularize.r_drop to 0"
    if augmentation is not None and augmentation.bidirectional:
        yield "stores one direction; set regularize.augmentation.bidirectional to 0"


DISTILLATION = Regularizer(
    name="distillation",
    value_type=Annotated[Distillation | None, BeforeValidator(false_to_none)],
    default=None,
    meaning="a teacher and how to learn from it.",
    equation="L = (1 − w) CE + w T² KL(teacher ‖ student), or a teacher's outputs as targets",
    without="the data alone",
    source="Hinton et al. 2015; Kim and Rush 2016",
    code="train/regularizers/distillation.py",
    ablation=Ablation(off={"distillation": None}, on={}),
    conflicts=_conflicts,
    loss=_loss,
)
