"""Encoders whose embeddings are narrower than their layers, or with biases in some parts."""

import json

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from clearhead import EncoderConfig, EncoderModel, MaskedLanguageModel, masks
from clearhead.checkpoints import load_encoder, load_masked_lm, new_masked_lm, save_masked_lm, seq2seq_from_encoder
from clearhead.checkpoints.families.bert import BERT
from clearhead.checkpoints.families.electra import ELECTRA
from clearhead.checkpoints.schema.model_size import model_bytes

SIZES = {"vocab_size": 20, "d_model": 32, "ffn_hidden": 48, "num_heads": 4, "num_layers": 2, "max_len": 24}


def electra(kind, folder, **changes):
    """Save and return a tiny random ELECTRA of transformers."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
    config = transformers.ElectraConfig(**sizes, max_position_embeddings=24, initializer_range=0.3, **changes)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():  # transformers starts norms and biases at 1 and 0, which would hide a swap of them
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


def batch():
    keep = torch.arange(11) < torch.tensor([[11], [5]])
    return torch.randint(1, 20, (2, 11)).masked_fill(~keep, 0), keep


def assert_same_tensors(one, other):
    before, after = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_hidden_states_of_a_family_with_narrow_embeddings_equal_transformers(tmp_path):
    theirs = electra("ElectraModel", tmp_path / "theirs")
    ours, family = load_encoder(tmp_path / "theirs")
    assert ours.config.embedding_dim == 24
    ids, keep = batch()
    types = torch.randint(2, ids.shape)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long(), token_type_ids=types).last_hidden_state
        hidden = ours(ids, masks.padding(keep), types)
    torch.testing.assert_close(hidden[keep], expected[keep], atol=1e-5, rtol=1e-5)
    family.save(ours, tmp_path / "ours")
    assert_same_tensors(tmp_path / "theirs", tmp_path / "ours")


def test_logits_of_a_family_with_narrow_embeddings_equal_transformers(tmp_path):
    theirs = electra("ElectraForMaskedLM", tmp_path / "theirs")
    ours, family = load_masked_lm(tmp_path / "theirs")
    ids, keep = batch()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).logits
        torch.testing.assert_close(ours(ids, masks.padding(keep))[keep], expected[keep], atol=1e-5, rtol=1e-5)
    save_masked_lm(ours, family, tmp_path / "ours")
    assert_same_tensors(tmp_path / "theirs", tmp_path / "ours")


def test_equal_widths_need_no_projection(tmp_path):
    config = ELECTRA.make_config(**SIZES | {"embedding_dim": None})
    model = EncoderModel(config)
    assert model.embedding.projection is None
    ELECTRA.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["embedding_size"] == 32
    assert load_encoder(tmp_path)[0].embedding.projection is None
    assert transformers.ElectraModel.from_pretrained(tmp_path).config.embedding_size == 32


@pytest.mark.slow
@given(
    embedding_dim=st.sampled_from([1, 24, 40]),
    positions=st.sampled_from(["learned", "sinusoidal", "rotary", "none"]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=8)
def test_packed_texts_equal_padded_ones(embedding_dim, positions, seed):
    torch.manual_seed(seed)
    config = EncoderConfig(**SIZES, embedding_dim=embedding_dim, positions=positions, num_token_types=2)
    model, (ids, keep) = EncoderModel(config).eval(), batch()
    padded = model(ids, masks.padding(keep))
    assert padded.shape == (2, 11, 32)
    packed = model(ids[keep][None], masks.packed([11, 5]))[0]
    torch.testing.assert_close(packed, padded[keep], atol=1e-5, rtol=1e-5)
    padded[keep].square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_masked_language_model_ties_its_output_to_a_narrow_embedding():
    model = MaskedLanguageModel(EncoderConfig(**SIZES, embedding_dim=24, embedding_norm=True))
    ids, _ = batch()
    assert model.output.tokens is model.encoder.embedding.tokens
    assert (model(ids).shape, model.hidden(ids).shape) == ((2, 11, 20), (2, 11, 24))
    model(ids).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.head.parameters())
    copy = new_masked_lm(EncoderModel(ELECTRA.make_config(**SIZES, embedding_dim=24)), ELECTRA)
    assert copy.hidden(ids).shape == (2, 11, 24)


def test_size_counts_the_projection():
    wide, narrow = EncoderConfig(**SIZES), EncoderConfig(**SIZES, embedding_dim=24)
    tables = SIZES["vocab_size"] + SIZES["max_len"]
    assert model_bytes(wide) - model_bytes(narrow) == 4 * (tables * 8 - 24 * 32 - 32)


def test_width_below_1_is_refused():
    with pytest.raises(ValueError, match="embedding_dim must be at least 1; got 0"):
        EncoderConfig(**SIZES, embedding_dim=0)


def test_family_without_narrow_embeddings_refuses_them():
    with pytest.raises(ValueError, match="cannot hold embedding_dim=24; it needs None"):
        BERT.make_config(**SIZES, embedding_dim=24)
    encoder = EncoderModel(ELECTRA.make_config(**SIZES, embedding_dim=24))
    with pytest.raises(ValueError, match="its embedding is not as wide as its layers"):
        seq2seq_from_encoder(encoder, ELECTRA, decoder_num_layers=1, start_id=1, eos_ids=(2,))


@pytest.mark.parametrize("part", ["attention", "feedforward", "norm"])
def test_each_part_has_its_own_bias(part):
    config = EncoderConfig(**SIZES, embedding_norm=True, bias=False, **{f"{part}_bias": True})
    biased = {name.rpartition(".")[0] for name, _ in EncoderModel(config).named_parameters() if name.endswith("bias")}
    parts = {
        "attention": {"attention.qkv", "attention.out"},
        "feedforward": {"feedforward.inner", "feedforward.out"},
        "norm": {"attention_residual.norm", "feedforward_residual.norm"},
    }
    expected = {f"encoder.layers.{number}.{name}" for number in range(2) for name in parts[part]}
    assert biased == expected | ({"embedding.norm"} if part == "norm" else set())
