"""Encoders with rotary positions and gates: shared keys, poolings of classifiers, and settings that are refused.

Random configurations are in tests/checkpoints/encoders/test_random_configs.py.
"""

import json

import pytest
import torch
import transformers

from clearhead import masks, trace, watch
from clearhead.checkpoints import load_classifier, load_encoder

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

NAMES = {
    "eurobert": "EuroBert",
    "nomic_bert": "NomicBert",
    "gte": "Gte",
    "jina_embeddings_v3": "JinaEmbeddingsV3",
}


def random_model(family, kind, arguments, folder, seed):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{NAMES[family]}Config")(**arguments)
    model = getattr(transformers, f"{NAMES[family]}{kind}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def assert_within(ours, theirs, bound=1e-5):
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < bound


def test_trace_of_heads_that_share_keys(tmp_path):
    arguments = {"vocab_size": 20, "hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2}
    arguments |= {"num_hidden_layers": 1, "intermediate_size": 7, "pad_token_id": 0, "attn_implementation": "eager"}
    theirs = random_model("eurobert", "Model", arguments, tmp_path, 0)
    ours, _ = load_encoder(tmp_path)
    ids = torch.randint(20, (1, 9))
    steps = {step.path: step for step in trace(ours, ids, values=True).steps}
    assert [size for _, size in steps["encoder.layers.0.attention.repeat_heads"].shape] == [1, 6, 9, 2]
    with torch.no_grad():
        expected = theirs(ids, output_attentions=True).attentions[0]
        with watch(ours) as records:
            ours(ids)
    torch.testing.assert_close(records.records[0].values, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["late", "bos", "mean"])
def test_poolings_of_eurobert_classifiers(pooling, tmp_path):
    arguments = {"vocab_size": 20, "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1}
    arguments |= {"intermediate_size": 7, "pad_token_id": 0, "num_labels": 3, "classifier_pooling": pooling}
    theirs = random_model("eurobert", "ForSequenceClassification", arguments, tmp_path, 0)
    ours, loaded = load_classifier(tmp_path)
    ids, keep = torch.randint(20, (2, 9)), torch.arange(9) < torch.tensor([[9], [4]])
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits
        assert_within(ours(ids, masks.padding(keep)), expected)
    loaded.save_with_head(ours, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["classifier_pooling"] == pooling


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type='yarn', which is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling has rope_type='dynamic'"),
        ({"rope_parameters": {"rope_theta": 100.0, "factor": 2.0}}, "factor=2.0, which a rope_type of 'default'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor=None; expected a number above 0"),
        ({"rope_parameters": [1.0]}, "expected an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ({"hidden_act": "mish"}, "hidden_act='mish', which is not supported"),
        ({"sliding_window": 64}, "sliding_window=64, which is unknown"),
    ],
)
def test_unsupported_settings_are_refused_by_name(family, changes, words, tmp_path):
    arguments = {"vocab_size": 20, "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1}
    random_model(family, "Model", arguments | {"intermediate_size": 7, "pad_token_id": 0}, tmp_path, 0)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | changes))
    with pytest.raises(ValueError, match=words) as error:
        load_encoder(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_key_value_heads": 3}, "num_heads must be divisible by num_kv_heads"),
        ({"num_key_value_heads": "many"}, "num_key_value_heads='many'; expected an integer"),
        ({"head_dim": 0}, "head_dim=0; expected an integer of at least 1"),
        ({"mlp_bias": 1}, "mlp_bias=1; expected true or false"),
        ({"num_key_value_heads": 1}, r"k_proj.weight has shape \(12, 12\), but .* asks for \(6, 12\)"),
    ],
)
def test_invalid_eurobert_configs_are_refused(changes, words, tmp_path):
    arguments = {"vocab_size": 20, "hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 1}
    random_model("eurobert", "Model", arguments | {"intermediate_size": 7, "pad_token_id": 0}, tmp_path, 0)
    data = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | changes))
    with pytest.raises(ValueError, match=words):
        load_encoder(tmp_path)
