"""Sizes of a model: describe it, and check that it and its batches fit in memory, before training starts."""

from dataclasses import replace

import torch
from torch import nn

from clearhead.checkpoints.schema.model_size import model_bytes
from clearhead.checkpoints.seq2seq_family import with_explicit_sizes
from clearhead.memory import check_memory
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.runtime.device import choose_device
from clearhead.train.recipe.errors import named
from clearhead.train.recipe.recipe import Recipe

_BATCH_BYTES = 2**10
"""Lower bound of the bytes of a collated batch without its token ids: tensors, row numbers and Python objects."""

_NUM_COPIES = 4
"""Tensors of the weights' size that training needs: weights, gradients and Adam's two moments."""


def check_size(config: EncoderConfig | Seq2SeqConfig, recipe: Recipe) -> None:
    """Check that the training of a new model fits in the memory of this machine and of its device.

    Args:
        config: config of the model.
        recipe: the recipe.

    Raises:
        ValueError: it does not fit.
    """
    device = choose_device(recipe.training.device)
    with named("model"):
        size = model_bytes(config)
    purpose = f"training a model with d_model={config.d_model} and num_layers={config.num_layers}"
    sizes = "d_model, ffn_hidden, num_layers, decoder_num_layers, max_len"
    advice = f"Choose smaller sizes in the recipe's section model ({sizes}) or a smaller tokenizer.vocab_size."
    copies = 1 if recipe.training.fsdp else _NUM_COPIES  # FSDP spreads the others over the processes
    check_memory(size if device.type != "cpu" else copies * size, purpose, advice)
    check_memory(copies * size, purpose, advice, device)


def check_depth(config: EncoderConfig | Seq2SeqConfig, layers: int, recipe: Recipe) -> None:
    """Check that a pretrained model with a new half of some depth fits in memory.

    Args:
        config: config of the pretrained model, whose widths the new half shares.
        layers: layers of the new half.
        recipe: the recipe.

    Raises:
        ValueError: it does not fit.
    """
    if isinstance(config, EncoderConfig):
        check_size(replace(config, num_layers=layers, windows=(), layer_groups=None, group_layers=1), recipe)
    else:
        check_size(replace(with_explicit_sizes(config), num_layers=layers), recipe)


def check_batch(model: nn.Module, num_tokens: int, recipe: Recipe) -> None:
    """Check that the activations of a batch fit in memory, using a lower bound of their size.

    Args:
        model: the model, on the CPU.
        num_tokens: tokens of the batch.
        recipe: the recipe.

    Raises:
        ValueError: they do not fit.
    """
    config = _config_of(model)
    if config is not None:
        # per layer, in bfloat16 or wider: projections and the hidden layer of the feed-forward network
        size = 2 * num_tokens * config.num_layers * (4 * config.d_model + config.ffn_hidden)
        purpose, advice = f"training with a batch of {num_tokens} tokens", "Choose a smaller data.batch_tokens."
        check_memory(size, purpose, advice, choose_device(recipe.training.device))


def describe_model(model: nn.Module) -> str:
    """Return the number of parameters of a model and its sizes, in one line."""
    parameters = list(model.parameters())
    total, trained = (sum(map(torch.numel, group)) for group in (parameters, filter(_is_trained, parameters)))
    parts = [f"{total:,} parameters" if trained == total else f"{total:,} parameters, {trained:,} of them trained"]
    if (config := _config_of(model)) is not None:
        layers = f"{config.num_layers} layers"
        if isinstance(config, Seq2SeqConfig):
            layers = f"{config.num_layers} + {config.decoder_num_layers or config.num_layers} layers"
        parts += [layers, f"width {config.d_model}", f"vocabulary of {config.vocab_size:,}"]
    return ", ".join(parts)


def _is_trained(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _config_of(model: nn.Module) -> EncoderConfig | Seq2SeqConfig | None:
    config = getattr(model, "config", None) or getattr(getattr(model, "encoder", None), "config", None)
    return config if isinstance(config, EncoderConfig | Seq2SeqConfig) else None


def check_update(num_tokens: float, recipe: Recipe) -> None:
    """Check that the batches of one update fit in memory: all are collated before the first one runs.

    Args:
        num_tokens: mean number of tokens of a batch.
        recipe: the recipe.

    Raises:
        ValueError: they do not fit.
    """
    num_batches = recipe.training.gradient_accumulation_steps
    size = int(num_batches * (_BATCH_BYTES + 8 * num_tokens))
    advice = "Choose a smaller training.gradient_accumulation_steps."
    check_memory(size, f"an update of {num_batches} batches", advice)
