"""Keys of a recipe that do not go together."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clearhead.train.recipe.recipe import Recipe

_SIZES = (
    *("layout", "d_model", "ffn_hidden", "num_heads", "num_layers", "decoder_num_layers", "max_len", "activation"),
    "initializer_range",
)
"""Of a model; a checkpoint brings its own."""


def conflicts(recipe: "Recipe") -> Iterator[tuple[str, str]]:
    """Keys that do not go with the task or with each other, and why."""
    yield from _misfits_of_model(recipe)
    yield from _misfits_of_regularisers(recipe)
    if recipe.validation.scores and recipe.task != "text-to-text":
        yield "validation.scores", f"are of texts that are generated; {recipe.task} has scores of its own"
    if recipe.data.validation is None:
        if recipe.validation.scores:
            yield "validation.scores", "need data.validation to be measured on"
        if recipe.validation.select != "loss":
            yield "validation.select", "needs data.validation to be measured on"
        if recipe.training.final == "best":
            yield "training.final", "best needs data.validation to judge by"


def _misfits_of_model(recipe: "Recipe") -> Iterator[tuple[str, str]]:
    task, told = recipe.task, recipe.model
    free = {"encoder": {"decoder_num_layers"}, "decoder": {"num_layers"}}
    for begun in ("start", "encoder", "decoder"):
        if getattr(told, begun) is None:
            continue
        for name in _SIZES:
            if getattr(told, name) is not None and name not in free.get(begun, ()):
                yield f"model.{name}", f"is what the checkpoint of model.{begun} says; leave it out"
        if recipe.tokenizer != type(recipe.tokenizer)():
            yield "tokenizer", f"the checkpoint of model.{begun} brings its own; leave it out"
    if task != "text-to-text":
        for name in ("encoder", "decoder", "decoder_num_layers"):
            if getattr(told, name) is not None:
                yield f"model.{name}", f"is of an encoder–decoder; the task is {task}"


def _misfits_of_regularisers(recipe: "Recipe") -> Iterator[tuple[str, str]]:
    task, told = recipe.task, recipe.regularize
    if task == "sentence-embeddings":
        for name in ("r_drop", "label_smoothing"):
            if getattr(told, name):
                yield f"regularize.{name}", "is for tasks that predict classes or tokens, not for sentence embeddings"
    if told.r_drop and not any(told.dropout.model_dump().values()):
        yield "regularize.r_drop", "compares two passes with different dropout; all dropout is 0"
    if told.early_stopping is not None and recipe.data.validation is None:
        yield "regularize.early_stopping", "needs data.validation to judge by"
    if told.augmentation is not None:
        if task == "masked-language-model":
            yield (
                "regularize.augmentation",
                "would change what is to be guessed; objective.mask_rate is this task's own",
            )
        for name in ("token_deletion", "token_swapping", "shuffling"):
            if task == "span-answers" and getattr(told.augmentation, name):
                yield f"regularize.augmentation.{name}", "moves the answer's tokens; the other changes do not"
    if told.distillation is not None:
        if told.distillation.sequence and task != "text-to-text":
            yield "regularize.distillation.sequence", f"is for text-to-text; the task is {task}"
        if told.distillation.hidden_weight and task not in ("text-to-text", "masked-language-model"):
            yield "regularize.distillation.hidden_weight", f"is for tasks that predict tokens; the task is {task}"
