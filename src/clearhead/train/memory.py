"""Check that a model and its batches fit the memory, before training begins."""

from dataclasses import replace

from torch import nn

from clearhead.checkpoints.schema.model_size import model_bytes
from clearhead.checkpoints.seq2seq_family import with_explicit_sizes
from clearhead.memory import check_memory
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.runtime.device import choose_device
from clearhead.train.recipe.recipe import Recipe

_BATCH_BYTES = 2**10
"""Bytes of a collated batch without its token ids: tensors, row numbers and Python objects, estimated from below."""
_TRAINED = 4
"""Copies of the weights that training holds: weights, gradients and Adam's two moments."""


def check_size(plan: EncoderConfig | Seq2SeqConfig, recipe: Recipe) -> None:
    """Raise an error for a new model whose training does not fit the memory of this machine or of its device.

    Args:
        plan: of the model.
        recipe: the recipe.

    Raises:
        ValueError: it does not fit.
    """
    device, size = choose_device(recipe.training.device), model_bytes(plan)
    what = f"training a model with d_model={plan.d_model} and num_layers={plan.num_layers}"
    sizes = "d_model, ffn_hidden, num_layers, decoder_num_layers, max_len"
    advice = f"Choose smaller sizes in the recipe's section model ({sizes}) or a smaller tokenizer.vocab_size."
    copies = 1 if recipe.training.shard else _TRAINED  # sharded, the others are spread over the processes
    check_memory(size if device.type != "cpu" else copies * size, what, advice)
    check_memory(copies * size, what, advice, device)


def check_depth(config: EncoderConfig | Seq2SeqConfig, layers: int, recipe: Recipe) -> None:
    """Raise a ValueError where a fresh half of a pretrained model has more layers than fit the memory.

    Args:
        config: the plan of the pretrained model, whose widths the fresh half takes over.
        layers: layers of the fresh half.
        recipe: the recipe.
    """
    if isinstance(config, EncoderConfig):
        check_size(replace(config, num_layers=layers, windows=()), recipe)
    else:
        check_size(replace(with_explicit_sizes(config), num_layers=layers), recipe)


def check_batch(model: nn.Module, tokens: int, recipe: Recipe) -> None:
    """Raise an error where the activations of a batch do not fit the memory; they are estimated from below.

    Args:
        model: the model, on the CPU.
        tokens: of the batch.
        recipe: the recipe.

    Raises:
        ValueError: they do not fit.
    """
    config = getattr(model, "config", None) or getattr(getattr(model, "encoder", None), "config", None)
    if isinstance(config, EncoderConfig | Seq2SeqConfig):
        # in each layer, in bfloat16 at least: projections and the hidden layer of the feed-forward
        size = 2 * tokens * config.num_layers * (4 * config.d_model + config.ffn_hidden)
        what, advice = f"training with a batch of {tokens} tokens", "Choose a smaller data.batch_tokens."
        check_memory(size, what, advice, choose_device(recipe.training.device))


def check_update(tokens: float, recipe: Recipe) -> None:
    """Raise an error where the batches of one update do not fit the memory: all are collated before the first runs.

    Args:
        tokens: mean number of tokens of a batch.
        recipe: the recipe.

    Raises:
        ValueError: they do not fit.
    """
    batches = recipe.training.accumulate
    size = int(batches * (_BATCH_BYTES + 8 * tokens))
    check_memory(size, f"an update of {batches} batches", "Choose a smaller training.accumulate.")
