"""Memory of a new model, counted before it is built."""

from dataclasses import replace

import torch

from clearhead.checkpoints.load import on_meta
from clearhead.models.config import EncoderConfig, Seq2SeqConfig
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq

_LAYER = 2**16
"""Bytes of a layer's Python objects, without its tensors."""


def model_bytes(config: EncoderConfig | Seq2SeqConfig) -> int:
    """Return the bytes of a model's parameters and tables, in float32.

    All layers after the first of a stack have the same size, so models of one and two layers are measured.

    Args:
        config: the config of the model.

    Raises:
        ValueError: a tensor would have more bytes than an address can count.

    >>> model_bytes(EncoderConfig(vocab_size=1000, num_layers=10**6)) // 2**30
    11804
    """
    if isinstance(config, EncoderConfig):
        one, two = (_encoder(config, layers) for layers in (1, 2))
        layers = config.num_layers if config.layer_groups is None else config.layer_groups * config.group_layers
        return one + (layers - 1) * (two - one)
    encoder, decoder = config.num_layers, config.decoder_num_layers or config.num_layers
    one = _seq2seq(config, 1, 1)
    more = (encoder - 1) * (_seq2seq(config, 2, 1) - one) + (decoder - 1) * (_seq2seq(config, 1, 2) - one)
    return one + more


def _encoder(config: EncoderConfig, layers: int) -> int:
    smaller = replace(
        config, num_layers=layers, windows=(config.windows * 2)[:layers], layer_groups=None, group_layers=1
    )
    return _bytes(on_meta(lambda: EncoderModel(smaller)), layers)


def _seq2seq(config: Seq2SeqConfig, encoder: int, decoder: int) -> int:
    smaller = replace(config, num_layers=encoder, decoder_num_layers=decoder)
    return _bytes(on_meta(lambda: Seq2Seq(smaller)), encoder + decoder)


def _bytes(model: torch.nn.Module, layers: int) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) + layers * _LAYER
