"""Checks of recipe keys that are incompatible with each other."""

from collections.abc import Iterator

from clearhead.train.recipe.sections import RecipeBase

Conflict = tuple[str, str]
"""Key with dots, and the reason why it is not allowed."""

_SIZES = (
    *("architecture", "d_model", "ffn_hidden", "num_heads", "num_layers", "decoder_num_layers", "max_len"),
    *("activation", "initializer_range"),
)
"""Keys of a new model; a checkpoint determines them itself."""

_FREE_SIZES = {"init_encoder_from": "decoder_num_layers", "init_decoder_from": "num_layers"}
"""Depth of the new half next to a pretrained one."""


def section_conflicts(recipe: RecipeBase) -> Iterator[Conflict]:
    """Yield the conflicts between sections; regularizers and tasks declare theirs themselves."""
    yield from _model_conflicts(recipe)
    if recipe.training.fsdp and recipe.optimizer.name == "muon":
        yield "training.fsdp", "is incompatible with optimizer.name muon, which needs whole matrices; use adamw"
    validation = recipe.validation
    if recipe.data.validation is None:
        if validation.metrics:
            yield "validation.metrics", "require data.validation"
        if validation.monitor != "loss":
            yield "validation.monitor", "requires data.validation"
        if recipe.training.final_weights == "best":
            yield "training.final_weights", "best requires data.validation"


def _model_conflicts(recipe: RecipeBase) -> Iterator[Conflict]:
    model = recipe.model
    for key in ("init_from", "init_encoder_from", "init_decoder_from"):
        if getattr(model, key) is None:
            continue
        given = [name for name in _SIZES if getattr(model, name) is not None and name != _FREE_SIZES.get(key)]
        if given:
            names, source = ", ".join(f"model.{name}" for name in given), getattr(model, key)
            reason = f"determined by the checkpoint in model.{key}; remove these keys, or replace the section"
            yield names, f"{reason} on the command line: 'model={{{key}: {source}}}'"
        if recipe.tokenizer != type(recipe.tokenizer)():
            reason = f"the checkpoint in model.{key} has its own; remove the section"
            yield "tokenizer", f"{reason}, or empty it on the command line: 'tokenizer={{}}'"
