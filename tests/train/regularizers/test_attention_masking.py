"""Without attention masking, padding matters and causal masks stay."""

from dataclasses import replace

import pytest
import torch
from support.data.training_data import batch_of, module_of


def _with_padding(batch, name, keep, value):
    changed = batch[name].clone()
    changed[~batch[keep]] = value
    return replace(batch, tensors={**batch.tensors, name: changed})


@pytest.mark.parametrize(
    ("task", "name", "keep"),
    [
        ("text-to-text", "source", "source_keep"),
        ("masked-language-model", "text", "keep"),
        ("classification", "text", "keep"),
        ("span-answers", "text", "keep"),
        ("reranking", "document", "document_keep"),
        ("sentence-embeddings", "first", "first_keep"),
    ],
)
@pytest.mark.parametrize("masking", [True, False])
def test_padding_matters_only_without_attention_masking(data, task, name, keep, masking):
    module, examples = module_of(data, task, attention_masking=masking)
    batch = batch_of(module, examples)
    assert not batch[keep].all()
    other = _with_padding(batch, name, keep, 17)
    same = torch.allclose(module._loss(batch), module._loss(other), rtol=1e-6)
    assert same == masking


@pytest.mark.parametrize("masking", [True, False])
def test_later_target_tokens_do_not_change_the_result(data, masking):
    module, examples = module_of(data, attention_masking=masking)
    batch = batch_of(module, examples)
    decoder_input = batch["decoder_input"].clone()
    decoder_input[:, 3:] = 17
    one = module.task.predict(module.model, batch, mask_padding=masking).hidden_ND
    other = replace(batch, tensors={**batch.tensors, "decoder_input": decoder_input})
    two = module.task.predict(module.model, other, mask_padding=masking).hidden_ND
    places = torch.arange(decoder_input.shape[1]).expand_as(decoder_input)[batch["target_keep"]]
    torch.testing.assert_close(one[places < 3], two[places < 3])
    assert not torch.allclose(one[places >= 3], two[places >= 3])
