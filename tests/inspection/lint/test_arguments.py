"""lint() refuses unusable models and batches, and leaves the model and the gradient mode as they were."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import transformers
from support.lint.examples import (
    ATTENDED,
    IDS,
    KEEP,
    MASK,
    PAD,
    TARGET_KEEP,
    X,
    Y,
    attention,
    encoder,
    right_torch,
    torch_encoder,
    torch_transformer,
)
from torch import nn

from clearhead import lint


def test_refuses_batch_without_source():
    with pytest.raises(ValueError, match=r"as the source.*got words\. Rename"):
        lint(encoder(), {"words": IDS})


@pytest.mark.parametrize(
    ("model", "batch", "known", "message"),
    [
        (encoder(), IDS, {}, "The batch must map argument names to values, .*; got a Tensor"),
        (SimpleNamespace(model=encoder()), {"ids": IDS}, {}, "must be a torch.nn.Module; got a SimpleNamespace. Pass its `model`"),
        (3, {"ids": IDS}, {}, r"must be a torch.nn.Module; got a int\.$"),
        (encoder(), {"ids": IDS}, {"keep": KEEP.tolist()}, "keep must be a tensor .*; got a list. Convert lists with torch.tensor"),
        (encoder(), {"ids": IDS}, {"keep": KEEP.float()}, r"keep must be a tensor .*; got float32 of shape \(3, 6\)"),
        (encoder(), {"ids": IDS}, {"keep": 2 * KEEP.long()}, r"keep must be a tensor .*; got int64 of shape \(3, 6\)"),
        (encoder(), {"ids": IDS}, {"target_keep": KEEP[0]}, r"target_keep must be a tensor .*; got bool of shape \(6,\)"),
        (encoder(), {"ids": IDS.tolist()}, {}, "ids must be a tensor of token ids or vectors; got a list"),
        (encoder(), {"ids": IDS[:0]}, {}, r"ids must have the shape \(batch, length\) with at least one text; got \(0, 6\)"),
    ],
)  # fmt: skip
def test_refuses_invalid_arguments(model, batch, known, message):
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(lint)(model, batch, **known)  # without the type checks of the test suite


def test_accepts_integer_attention_masks_as_keep():
    for keep in (KEEP.long(), KEEP.int()):
        assert lint(torch_encoder(), {"src": X, "src_key_padding_mask": ~KEEP}, keep=keep) == []


def test_refuses_decoder_without_encoder():
    sizes = {"vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
    for make in (transformers.GPT2Model, transformers.GPT2LMHeadModel):
        model = make(transformers.GPT2Config(**sizes, pad_token_id=PAD))
        with pytest.raises(ValueError, match=f"attn is causal: a {make.__name__} is a decoder without an encoder"):
            lint(model, {"input_ids": IDS, "attention_mask": KEEP.long()})


def test_each_module_keeps_its_mode():
    model = encoder().train()
    model.encoder.layers[0].eval()
    before = [module.training for module in model.modules()]
    assert len(set(before)) == 2
    lint(model, {"ids": IDS, "mask": MASK})
    assert [module.training for module in model.modules()] == before
    with pytest.raises(ValueError, match="token ids must"):
        lint(model, {"ids": torch.full_like(IDS, 999)})
    assert [module.training for module in model.modules()] == before


def test_refuses_mismatched_shapes_and_outputs_without_gradient():
    with pytest.raises(ValueError, match=r"value must have the shape \(batch, length, width\); got \(6, 8\)"):
        lint(attention()(), {"query": X[0], "key": Y[0], "value": Y[0]})
    with pytest.raises(ValueError, match=r"keep must have the shape \(3, 6\); got \(3, 4\)"):
        lint(encoder(), {"ids": IDS}, keep=KEEP[:, :4])
    shorter = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(1, 2), nn.Unflatten(1, (3, 16)))
    shorter.forward = lambda input_ids: nn.Sequential.forward(shorter, input_ids)
    with pytest.raises(
        ValueError, match=r"3 vectors for each text, but the source has 6 tokens\. If the model is an enc"
    ):
        lint(shorter, {"input_ids": IDS})
    silent = encoder()
    silent.forward = torch.no_grad()(silent.forward)
    with pytest.raises(ValueError, match="no gradient by the input. Remove torch.no_grad"):
        lint(silent, {"ids": IDS})


def test_enables_gradients_under_no_grad():
    with torch.no_grad():
        assert lint(encoder(), {"ids": IDS, "mask": MASK}) == []
        assert [finding.rule for finding in lint(encoder(), {"ids": IDS})] == [ATTENDED]
        assert not torch.is_grad_enabled()


def test_refuses_inference_mode():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"inference_mode\(\) disables"):
        lint(encoder(), {"ids": IDS})


def test_message_names_argument_of_wrong_shape():
    with pytest.raises(ValueError, match=r"target_keep must have the shape \(3, 6\); got \(3, 5\)"):
        lint(torch_transformer(), right_torch(), keep=KEEP, target_keep=TARGET_KEEP[:, :5])
