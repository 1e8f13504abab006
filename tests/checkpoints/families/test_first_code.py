"""Folders in the formats of the publishers' first code, and low-rank adapters, equal transformers without that code."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.command import clearhead, refused
from support.models.families import make
from support.models.first_code import first_code, read, stacked, write

from clearhead import TextEncoder, masks, verify
from clearhead.checkpoints import load_classifier, load_encoder, load_masked_lm
from clearhead.equations.positions import rotary_angles
from clearhead.inspection.verify import checks


def batch(vocab_size):
    return torch.randint(4, vocab_size, (3, 17)), torch.arange(17) < torch.tensor([[17], [4], [1]])


def assert_equal_states(ours, theirs):
    ids, keep = batch(ours.config.vocab_size)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).last_hidden_state[keep]
        states = ours(ids, masks.padding(keep))[keep]
    assert ((states - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 1e-5


@pytest.mark.parametrize("family", ["nomic_bert", "gte", "jina_embeddings_v3"])
def test_names_of_transformers_in_the_file(family, tmp_path):
    theirs = make(family, tmp_path)
    theirs.save_pretrained(tmp_path, save_original_format=False)
    assert any(".self_attn.q_proj." in name for name in load_file(tmp_path / "model.safetensors"))
    assert_equal_states(load_encoder(tmp_path)[0], theirs)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["nomic_bert", "gte", "jina_embeddings_v3"])
def test_first_code_loads_verifies_and_is_saved_for_transformers(family, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "has_compiler", lambda: False)
    theirs = first_code(family, tmp_path)
    if family == "jina_embeddings_v3":
        stacked(tmp_path)
    ours, loaded = load_encoder(tmp_path)
    assert loaded.model_type == family
    assert_equal_states(ours, theirs)
    loaded.save(ours, tmp_path / "saved")
    assert_equal_states(ours, transformers.AutoModel.from_pretrained(tmp_path / "saved").eval())
    assert read(tmp_path / "saved")["model_type"] == family
    certificate = verify(tmp_path, reference="transformers")
    assert certificate.holds, [check.name for check in certificate.checks if not check.holds]


def test_heads_of_the_first_code(tmp_path):
    theirs = first_code("gte", tmp_path / "classifier", "ForSequenceClassification")
    ours, _ = load_classifier(tmp_path / "classifier")
    ids, keep = batch(ours.encoder.config.vocab_size)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits
        assert torch.allclose(ours(ids, masks.padding(keep)), expected, atol=1e-5)
    theirs = first_code("gte", tmp_path / "mlm", "ForMaskedLM")
    ours, _ = load_masked_lm(tmp_path / "mlm")
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits[keep]
        assert torch.allclose(ours(ids, masks.padding(keep))[keep], expected, atol=1e-4)


def test_fixed_ntk_scaling_of_gte(tmp_path):
    first_code("gte", tmp_path)
    write(tmp_path, read(tmp_path) | {"rope_theta": 20_000.0, "rope_scaling": {"type": "ntk", "factor": 8.0}})
    ours, loaded = load_encoder(tmp_path)
    width, positions = 8, torch.arange(40)
    # as in the first code: the base is scaled first, the frequencies second
    frequencies = 1.0 / (20_000.0 * 8.0) ** (torch.arange(0, width, 2).float() / width) / 8.0 ** (2 / width)
    config = ours.config
    angles = rotary_angles(positions, width, config.rotary_theta, factor=config.rotary_factor)
    torch.testing.assert_close(angles, positions[:, None] * frequencies)
    loaded.save(ours, tmp_path / "saved")
    assert_equal_states(ours, transformers.AutoModel.from_pretrained(tmp_path / "saved").eval())


@pytest.mark.slow
def test_stacked_adapters_are_merged(tmp_path):
    make("jina_embeddings_v3", tmp_path / "native")
    first_code("jina_embeddings_v3", tmp_path / "first")
    for task, tensors in stacked(tmp_path / "first").items():
        save_file(tensors, tmp_path / "native" / "model.safetensors", {"format": "pt"})
        theirs = transformers.AutoModel.from_pretrained(tmp_path / "native").eval()
        ours, _ = load_encoder(tmp_path / "first", adapter=task)
        assert_equal_states(ours, theirs)
    ids, _ = batch(ours.config.vocab_size)
    with torch.no_grad():
        assert not torch.allclose(load_encoder(tmp_path / "first")[0](ids), ours(ids), atol=1e-2)
    with pytest.raises(ValueError, match="no adapter 'translation'. Use one of: retrieval.query, retrieval.passage"):
        load_encoder(tmp_path / "first", adapter="translation")
    make("bert", tmp_path / "bert")
    with pytest.raises(ValueError, match="no adapter 'separation': a bert model has no adapters"):
        load_encoder(tmp_path / "bert", adapter="separation")


@pytest.mark.parametrize("original", [True, False])
def test_peft_adapters_are_merged(original, tmp_path):
    theirs = make("jina_embeddings_v3", tmp_path)
    theirs.save_pretrained(tmp_path, save_original_format=original)
    factors, generator = {}, torch.Generator().manual_seed(2)
    for name, parameter in theirs.named_parameters():
        module, shape = name.removesuffix(".weight"), tuple(parameter.shape)
        if parameter.ndim < 2 or "mlp.fc2" in name:  # an adapter of some of the modules
            continue
        first, second = (
            ("lora_embedding_A", "lora_embedding_B") if "embeddings" in name else ("lora_A.weight", "lora_B.weight")
        )
        a = torch.randn(2, shape[0] if "embeddings" in name else shape[1], generator=generator) * 0.2
        b = torch.randn(shape[1] if "embeddings" in name else shape[0], 2, generator=generator) * 0.2
        factors |= {f"base_model.model.{module}.{first}": a, f"base_model.model.{module}.{second}": b}
        with torch.no_grad():
            parameter.add_(1.5 * ((b @ a).T if "embeddings" in name else b @ a))
    adapter = tmp_path / "retrieval_query"
    adapter.mkdir()
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 3,
        "bias": "none",
        "use_dora": False,
        "target_modules": ["fc1"],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    save_file(factors, adapter / "adapter_model.safetensors")
    assert_equal_states(load_encoder(tmp_path, adapter="retrieval.query")[0], theirs)
    for changes, words in (
        ({"use_dora": True}, "use_dora=True, which is not supported"),
        ({"r": 0}, "r=0; expected a number above 0"),
        ({"alpha_pattern": {"fc1": 2}}, "alpha_pattern"),
    ):
        (adapter / "adapter_config.json").write_text(json.dumps(config | changes))
        with pytest.raises(ValueError, match=words):
            load_encoder(tmp_path, adapter="retrieval_query")
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        factors | {"base_model.model.layers.9.mlp.fc1.lora_A.weight": torch.zeros(2, 2)},
        adapter / "adapter_model.safetensors",
    )
    with pytest.raises(ValueError, match=r"layers.9.mlp.fc1.lora_A.weight has no counterpart"):
        load_encoder(tmp_path, adapter="retrieval_query")


@pytest.mark.slow
def test_adapter_of_a_text_encoder_and_the_command(tmp_path):
    first_code("jina_embeddings_v3", tmp_path)
    stacked(tmp_path)
    plain, query = (
        TextEncoder.from_pretrained(tmp_path, precision="float32", device="cpu", adapter=adapter)
        for adapter in (None, "retrieval.query")
    )
    assert (plain.settings.default_prompt, query.settings.default_prompt) == (None, "retrieval.query")
    assert query.tokenize(["hello"])[0].ids == plain.tokenize(["query hello"])[0].ids
    vector = query.encode("hello")
    assert abs(vector - plain.encode("query hello")).max() > 1e-2
    query.save_pretrained(tmp_path / "merged")
    again = TextEncoder.from_pretrained(tmp_path / "merged", precision="float32", device="cpu")
    assert abs(again.encode("hello") - vector).max() < 1e-6
    (tmp_path / "texts.txt").write_text("hello\n")
    arguments = ["encode", tmp_path / "texts.txt", "--model", tmp_path, "--precision", "float32", "--adapter"]
    status, out, err = clearhead(*arguments, "retrieval.query")
    assert status == 0, err
    assert json.loads(out.splitlines()[0])["embedding"] == pytest.approx(vector.tolist(), abs=1e-5)
    assert "has no adapter 'other'. Use one of: retrieval.query" in refused(*arguments, "other")


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("nomic_bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor=2 changes the result"),
        ("nomic_bert", {"prenorm": True}, "prenorm=True changes the result"),
        ("nomic_bert", {"activation_function": "gelu"}, "activation_function='gelu' is not supported"),
        ("nomic_bert", {"num_experts": 8}, "num_experts=8, which is unknown"),
        ("gte", {"pack_qkv": False}, "pack_qkv=False changes the result"),
        ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type='absolute'"),
        ("gte", {"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "mixed_b=0.6, which is not supported"),
        ("gte", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type='yarn'"),
        ("gte", {"rope_scaling": {"type": "ntk"}}, "factor=None; expected a number above 0"),
        ("jina_embeddings_v3", {"truncate_dim": 64}, "truncate_dim=64, which is unknown"),
    ],
)  # fmt: skip
def test_unsupported_settings_of_the_first_code(family, changes, words, tmp_path):
    first_code(family, tmp_path)
    write(tmp_path, read(tmp_path) | changes)
    with pytest.raises(ValueError, match=words) as error:
        load_encoder(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "config.json"))
