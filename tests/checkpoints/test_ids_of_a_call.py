"""Ids that a caller passes to a model."""

import inspect

import pytest
import torch

from clearhead import EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig

SIZES = {"vocab_size": 10, "d_model": 8, "ffn_hidden": 16, "num_heads": 2, "num_layers": 1}


def call(model, ids):
    """Call a model without the type checks of the test suite."""
    return inspect.unwrap(type(model).encode if isinstance(model, Seq2Seq) else type(model).forward)(model, ids)


def test_list_of_ids():
    with pytest.raises(ValueError, match=r"Expected a tensor of ids \(batch, length\), got a list. Use torch.tensor"):
        call(EncoderModel(EncoderConfig(**SIZES)), [[3, 4]])


@pytest.mark.parametrize("model", [EncoderModel(EncoderConfig(**SIZES)), Seq2Seq(Seq2SeqConfig(**SIZES))])
@pytest.mark.parametrize(
    ("ids", "got"), [(torch.tensor([3, 4]), "torch.int64 of"), (torch.zeros(1, 2), "torch.float32 of")]
)
def test_tensor_of_a_wrong_form(model, ids, got):
    with pytest.raises(ValueError, match=rf"Expected integer ids of shape \(batch, length\), got {got}"):
        call(model, ids)
