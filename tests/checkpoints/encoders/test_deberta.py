"""DeBERTa: both forms of the masked language model's head, and configs that are refused."""

import json

import pytest
import torch
from support.models.families import make
from support.models.random_configs import batch, enlivened

from clearhead import masks
from clearhead.checkpoints import load_encoder, load_masked_lm, save_masked_lm
from clearhead.io.safetensors import read_weights, write_weights


def changed_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.slow
@torch.no_grad()
def test_head_of_the_authors_loads_and_is_written_in_the_form_of_transformers(tmp_path):
    theirs = enlivened(make("deberta-v2", tmp_path / "theirs", "ForMaskedLM", legacy=False))
    theirs.save_pretrained(tmp_path / "theirs")
    # the published files have no key legacy, other heads, and unused positions
    changed_config(tmp_path / "theirs", legacy=True, pooler_hidden_size=32, attention_head_size=8)
    tensors, _ = read_weights(tmp_path / "theirs")
    tensors |= {"mask_predictions.dense.weight": torch.ones(3, 3)}
    tensors |= {"deberta.embeddings.position_embeddings.weight": torch.ones(40, 32)}
    write_weights(tmp_path / "theirs" / "model.safetensors", tensors)
    ours, family = load_masked_lm(tmp_path / "theirs")
    ids, keep = batch(0)
    expected = theirs(ids, attention_mask=keep.long()).logits[keep]
    torch.testing.assert_close(ours(ids, masks.padding(keep))[keep], expected, atol=1e-4, rtol=1e-5)
    save_masked_lm(ours, family, tmp_path / "ours")
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    assert again.config.legacy
    torch.testing.assert_close(again(ids, attention_mask=keep.long()).logits[keep], expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(load_encoder(tmp_path / "theirs")[0](ids), ours.encoder(ids))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd='batch_norm' is not supported. Use none or layer_norm"),
        ({"pos_att_type": ["p2p", "c2p"]}, "pos_att_type=.* is not supported with relative_attention"),
        ({"pos_att_type": 3}, "pos_att_type=3; expected a list"),
        ({"relative_attention": False}, "pos_att_type=.* needs relative_attention=true"),
        ({"embedding_size": 24}, "embedding_size=24 is not supported; only 32 is"),
        ({"attention_head_size": 16}, "attention_head_size=16 is not supported; only 8 is"),
        ({"conv_kernel_size": 2}, "the width of a convolution must be odd; got 2"),
        ({"conv_kernel_size": 3, "conv_act": "mish"}, "has conv_act='mish', which is not supported"),
        ({"conv_kernel_size": 3, "conv_groups": 5}, "d_model=32 must be divisible by convolution_groups=5"),
        ({"position_buckets": 100}, "max_distance must exceed the 50 distances with a bucket each"),
        ({"position_buckets": "8"}, "position_buckets='8'; expected an integer"),
        ({"share_att_key": "yes"}, "share_att_key='yes'; expected true or false"),
        ({"pooler_hidden_act": "mish"}, "pooler_hidden_act='mish'"),
        ({"talking_head": True}, "talking_head=True, which is unknown"),
    ],
)
def test_unsupported_configs_are_refused_by_name(changes, words, tmp_path):
    from clearhead.checkpoints import load_classifier

    make("deberta-v2", tmp_path, "ForSequenceClassification")
    changed_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=words) as refusal:
        load_classifier(tmp_path)
    assert "\n" not in str(refusal.value)
