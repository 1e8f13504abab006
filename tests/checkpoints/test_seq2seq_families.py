"""Each encoder–decoder family equals transformers, and round-trips."""

import copy
import json
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.models.seq2seq import FAMILIES, KINDS, make

from clearhead import masks
from clearhead.checkpoints import load_encoder, load_seq2seq

UNTIED = [kind for kind in FAMILIES if "t5" not in kind]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """Return (kind, folder, transformers' model, our model, its family)."""
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    theirs = make(request.param, folder)
    return request.param, folder, theirs, *load_seq2seq(folder)


def batch(lengths, seed, config):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, config.vocab_size - 2, (len(lengths), max(lengths)), generator=generator)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~keep, config.pad_id), keep


def theirs_logits(model, ids, keep, target):
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=target).logits


def assert_within(ours, theirs, bound=1e-5):
    distance = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
    assert distance.max() < bound, distance.max()


@pytest.fixture(scope="module")
def pair_64(pair):
    """Return transformers' model and ours in float64, where rounding is far below the bound."""
    _, _, theirs, ours, _ = pair
    return copy.deepcopy(theirs).double(), copy.deepcopy(ours).double()


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4), target=st.integers(1, 30), seed=st.integers(0, 2**16)
)
@settings(max_examples=10)
def test_logits(pair_64, lengths, target, seed):
    theirs, ours = pair_64
    ids, keep = batch(lengths, seed, ours.config)
    target_ids, _ = batch([target] * len(lengths), seed + 1, ours.config)
    expected = theirs_logits(theirs, ids, keep, target_ids)
    with torch.no_grad():
        assert_within(ours(ids, target_ids, masks.padding(keep)), expected, 1e-6)


def test_left_padding_does_not_change_the_result(pair):
    *_, ours, _ = pair
    ids, keep = batch([6, 9], 3, ours.config)
    target, _ = batch([5, 5], 4, ours.config)
    left = torch.full((2, 12), ours.config.pad_id)
    for row, length in enumerate([6, 9]):
        left[row, 12 - length :] = ids[row, :length]
    places = torch.arange(12) >= torch.tensor([[6], [3]])
    with torch.no_grad():
        expected = ours(ids, target, masks.padding(keep))
        torch.testing.assert_close(ours(left, target, masks.padding(places)), expected, atol=2e-5, rtol=1e-5)


def test_saved_model_opens_in_transformers_with_the_same_tensors(pair, tmp_path):
    kind, folder, theirs, ours, family = pair
    family.save(ours, tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    back = getattr(transformers, KINDS[kind][1]).from_pretrained(tmp_path).eval()
    ids, keep = batch([7, 4], 5, ours.config)
    target, _ = batch([6, 6], 6, ours.config)
    torch.testing.assert_close(theirs_logits(back, ids, keep, target), theirs_logits(theirs, ids, keep, target))
    again, _ = load_seq2seq(tmp_path)
    sizes = ("target_vocab_size", "decoder_ffn_hidden", "decoder_num_heads", "decoder_num_layers")
    explicit = {name: getattr(again.config, name) for name in (*sizes, "activation_drop_prob", "head_dim")}
    assert replace(ours.config, **explicit) == again.config


@pytest.mark.parametrize("kind", UNTIED)
def test_untied_output(kind, tmp_path):
    theirs = make(kind, tmp_path, tie_word_embeddings=False)
    ours, family = load_seq2seq(tmp_path)
    assert not ours.config.tie_output
    ids, keep = batch([7, 4], 5, ours.config)
    target, _ = batch([6, 6], 6, ours.config)
    expected = theirs_logits(theirs, ids, keep, target)
    with torch.no_grad():
        assert_within(ours(ids, target, masks.padding(keep)), expected)
    family.save(ours, tmp_path / "again")
    back = getattr(transformers, KINDS[kind][1]).from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(theirs_logits(back, ids, keep, target), expected)


def changed(folder, target, change):
    """Copy a folder with changed tensors."""
    target.mkdir(exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, target / "model.safetensors")
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    return target


def test_file_may_repeat_a_tied_matrix(pair, tmp_path):
    kind, folder, _, ours, family = pair
    if kind == "marian two vocabularies":
        pytest.skip("its embeddings are two")

    def twice(tensors):
        shared = tensors[f"{family.prefix}shared.weight"]
        for half in ("encoder", "decoder"):
            tensors[f"{family.prefix}{half}.embed_tokens.weight"] = shared
        if ours.config.tie_output:
            tensors["lm_head.weight"] = shared

    again, _ = load_seq2seq(changed(folder, tmp_path / "twice", twice))
    assert again.config == ours.config
    assert again.target_embedding.tokens is again.source_embedding.tokens
    for one, other in zip(again.parameters(), ours.parameters(), strict=True):
        assert torch.equal(one, other)


def test_missing_misshapen_and_unexpected_tensors(pair, tmp_path):
    _, folder, _, _, family = pair
    names = load_file(folder / "model.safetensors")
    name = next(name for name in names if "decoder" in name and name.split(".")[-2] in ("k", "k_proj"))
    with pytest.raises(ValueError, match=f"tensor {name.removeprefix(family.prefix)} is missing"):
        load_seq2seq(changed(folder, tmp_path / "a", lambda tensors: tensors.pop(name)))
    with pytest.raises(ValueError, match=f"tensor {name.removeprefix(family.prefix)} has shape"):
        load_seq2seq(changed(folder, tmp_path / "b", lambda tensors: tensors.update({name: torch.zeros(3, 3)})))
    with pytest.raises(ValueError, match="tensor other.weight is unexpected"):
        load_seq2seq(changed(folder, tmp_path / "c", lambda tensors: tensors.update({"other.weight": torch.zeros(3)})))


@pytest.mark.parametrize("kind", ["marian", "bart", "pegasus"])
def test_file_may_omit_the_output_bias(kind, tmp_path):
    make(kind, tmp_path)
    again, _ = load_seq2seq(changed(tmp_path, tmp_path / "a", lambda tensors: tensors.pop("final_logits_bias")))
    assert not again.output.bias.any()


@pytest.mark.parametrize("kind", ["marian", "pegasus"])
def test_positions_in_the_file_must_be_the_sinusoids(kind, tmp_path):
    make(kind, tmp_path)
    name, table = "model.encoder.embed_positions.weight", load_seq2seq(tmp_path)[0].source_embedding.positions.pe
    load_seq2seq(changed(tmp_path, tmp_path / "a", lambda tensors: tensors.update({name: table})))
    with pytest.raises(ValueError, match=r"embed_positions\.weight does not hold the sinusoids"):
        load_seq2seq(changed(tmp_path, tmp_path / "b", lambda tensors: tensors.update({name: table + 0.1})))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("bart", {"normalize_before": True}, "normalize_before=True, which changes"),
        ("bart", {"scale_embedding": 1}, "scale_embedding=1; expected true or false"),
        ("bart", {"d_model": "32"}, "d_model='32'; expected a number"),
        ("bart", {"encoder_layers": 2.5}, "encoder_layers=2.5; expected an integer"),
        ("bart", {"encoder_layers": None}, "lacks encoder_layers"),
        ("bart", {"encoder_layers": 10**8}, "100000003 layers"),
        ("bart", {"activation_function": "quick"}, "activation_function='quick', which is not supported"),
        ("bart", {"mixture": 3}, "mixture=3, which is unknown"),
        ("marian", {"decoder_vocab_size": 50}, "cannot share one embedding"),
        ("marian", {"decoder_vocab_size": "x"}, "decoder_vocab_size='x'; expected an integer"),
        ("marian", {"eos_token_id": "x"}, "token id 'x'"),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu' is not supported"),
        ("t5", {"dropout_rate": "much"}, "dropout_rate='much'; expected a number"),
        ("t5", {"relative_attention_num_buckets": 1}, "relative biases need"),
        (
            "t5",
            {"model_type": "t6"},
            "model_type='t6', which is not supported. Use one of: bart, m2m_100, marian, mbart",
        ),
    ],
)
def test_unsupported_config_is_refused(kind, change, message, tmp_path):
    make(kind, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        load_seq2seq(tmp_path)


def test_encoder_and_encoder_decoder_are_distinguished(tiny_bert, tmp_path):
    with pytest.raises(ValueError, match="an encoder without a decoder. To generate text, use"):
        load_seq2seq(tiny_bert)
    make("t5", tmp_path)
    with pytest.raises(ValueError, match="a t5 model, an encoder–decoder; expected an encoder"):
        load_encoder(tmp_path)


def test_unsupported_config_of_a_family_is_refused(tmp_path):
    from clearhead import Seq2Seq, Seq2SeqConfig
    from clearhead.checkpoints import SEQ2SEQ_FAMILIES

    model = Seq2Seq(Seq2SeqConfig(vocab_size=9, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1))
    for name, family in SEQ2SEQ_FAMILIES.items():
        with pytest.raises(ValueError, match=r"checkpoint (cannot hold|counts|has)"):
            family.save(model, tmp_path / name)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(("tied", "scaled"), [(True, True), (False, False), (True, False), (False, True)])
def test_t5_ties_and_scales_in_every_combination(tied, scaled, tmp_path):
    make("t5", tmp_path)
    ours, family = load_seq2seq(tmp_path)
    from clearhead import Seq2Seq

    model = Seq2Seq(replace(ours.config, tie_output=tied, output_scale=scaled)).eval()
    family.save(model, tmp_path / "again")
    again, _ = load_seq2seq(tmp_path / "again")
    assert (again.config.tie_output, again.config.output_scale) == (tied, scaled)
    back = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "again").eval()
    ids, keep = batch([7, 4], 5, ours.config)
    with torch.no_grad():
        assert_within(again(ids, ids, masks.padding(keep)), theirs_logits(back, ids, keep, ids))


@pytest.mark.parametrize("kind", UNTIED)
def test_missing_untied_output(kind, tmp_path):
    make(kind, tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"tensor lm_head\.weight is missing, but config\.json has"):
        load_seq2seq(changed(tmp_path, tmp_path / "a", lambda tensors: tensors.pop("lm_head.weight")))
