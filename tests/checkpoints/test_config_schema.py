"""New configs of each family: the family can store them, and transformers opens them."""

from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models.families import FAMILIES as ENCODERS
from support.models.families import NAMES
from support.models.seq2seq import KINDS

from clearhead import EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, masks
from clearhead.checkpoints import ENCODER_FAMILIES, SEQ2SEQ_FAMILIES, load_encoder, load_seq2seq
from clearhead.checkpoints.encoder_family import register
from clearhead.checkpoints.seq2seq_family import with_explicit_sizes
from clearhead.layers.options import Part

transformers.utils.logging.disable_progress_bar()

SIZES = {
    "vocab_size": st.integers(9, 40),
    "d_model": st.sampled_from([8, 16]),
    "ffn_hidden": st.integers(1, 20),
    "num_heads": st.sampled_from([1, 2, 4]),
    "num_layers": st.integers(1, 4),
    "drop_prob": st.sampled_from([0.0, 0.3]),
}
BOTH = {
    "max_len": st.integers(12, 30),
    "attention_drop_prob": st.sampled_from([0.0, 0.2]),
    "pad_id": st.integers(0, 8),
    "initializer_range": st.sampled_from([0.1, 0.5]),
}
OF_ONE = {
    "bert": {"num_token_types": st.integers(1, 3), "pooler": st.booleans(), "eps": st.sampled_from([1e-12, 1e-3])},
    "modernbert": {
        "bias": st.booleans(),
        "attention_bias": st.sampled_from([None, False, True]),
        "feedforward_bias": st.sampled_from([None, False, True]),
        "local_rotary_theta": st.sampled_from([None, 500.0]),
    },
}
GATES = st.sampled_from(["reglu", "geglu", "geglu_tanh", "swiglu"])
ROTARY = {"rotary_theta": st.sampled_from([500.0, 1e6]), "rotary_factor": st.sampled_from([1.5, 8.0])}
OF_ONE["eurobert"] = ROTARY | {
    "activation": GATES,
    "attention_bias": st.booleans(),
    "feedforward_bias": st.booleans(),
    "num_kv_heads": st.sampled_from([None, 1]),
    "head_dim": st.sampled_from([None, 6]),
    "eps": st.sampled_from([1e-6, 1e-3]),
}
BERT_LIKE = {"num_token_types": st.integers(1, 3), "pooler": st.booleans(), "eps": st.sampled_from([1e-12, 1e-3])}
OF_ONE["nomic_bert"] = ROTARY | BERT_LIKE | {"activation": GATES, "head_dim": st.sampled_from([None, 6])}
OF_ONE["gte"] = ROTARY | BERT_LIKE | {"activation": GATES, "num_token_types": st.integers(0, 2)}
OF_ONE["jina_embeddings_v3"] = ROTARY | BERT_LIKE
DECODING = {
    "activation": st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"]),
    "embedding_scale": st.booleans(),
    "tie_output": st.booleans(),
    "decoder_num_layers": st.integers(1, 3),
    "decoder_ffn_hidden": st.integers(1, 20),
    "decoder_num_heads": st.sampled_from([1, 2]),
    "layer_drop": st.sampled_from([0.0, 0.2]),
    "start_id": st.integers(0, 8),
    "eos_ids": st.sampled_from([(2,), (3, 4)]),
}
T5 = {
    "activation": st.sampled_from(["relu", "geglu_tanh"]),
    "tie_output": st.booleans(),
    "head_dim": st.sampled_from([None, 6]),
    "relative_buckets": st.sampled_from([8, 32]),
    "pad_id": st.integers(0, 8),
}


def parts_of(family):
    """Draw fields that the family can store; sizes are always given, because the defaults are large."""
    free = dict(BOTH) | OF_ONE.get(family, {})
    if family in SEQ2SEQ_FAMILIES:
        free |= DECODING
    if "t5" in family:
        free = dict(T5)
    if family == "mpnet":
        del free["pad_id"]
    sizes = {name: part for name, part in SIZES.items() if family != "eurobert" or name != "drop_prob"}
    return st.fixed_dictionaries(sizes, optional=free)


def enlivened(model, std=0.3):
    """Randomize all weights: zeros and ones would hide a swap."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    return model.eval()


def with_explicit_biases(config):
    """Return an equivalent config in which no part refers to `bias`, and no heads to num_heads."""
    biases = {f"{part}_bias": config.layer_options.has_bias(part) for part in get_args(Part)}
    return replace(config, num_kv_heads=config.num_kv_heads or config.num_heads, **biases)


def assert_within(ours, theirs, bound=2e-5):
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() < bound


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
@given(data=st.data())
@settings(max_examples=4)
def test_new_encoder_opens_in_transformers(name, data, tmp_path):
    check_new_encoder(name, data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OF_ONE))
@given(data=st.data())
@settings(max_examples=40)
def test_many_new_encoders_open_in_transformers(name, data, tmp_path):
    check_new_encoder(name, data, tmp_path)


def check_new_encoder(name, data, tmp_path):
    parts = data.draw(parts_of(name))
    config = ENCODER_FAMILIES[name].make_config(**parts)
    assert {part: getattr(config, part) for part in parts} == parts
    model = enlivened(EncoderModel(config), std=0.15)  # larger weights amplify rounding beyond the bound
    ENCODER_FAMILIES[name].save(model, tmp_path)
    theirs = getattr(transformers, f"{NAMES[name]}Model").from_pretrained(tmp_path).eval()
    ids = torch.randint(config.vocab_size, (2, 11))
    ids[ids == config.pad_id] = (config.pad_id + 1) % config.vocab_size
    keep = torch.arange(11) < torch.tensor([[11], [5]])
    with torch.no_grad():
        expected = theirs(ids, attention_mask=keep.long()).last_hidden_state
        assert_within(model(ids, masks.padding(keep))[keep], expected[keep])
    again = load_encoder(tmp_path)[0].config
    assert with_explicit_biases(again) == with_explicit_biases(
        replace(config, local_rotary_theta=again.local_rotary_theta)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQ2SEQ_FAMILIES)
@given(data=st.data())
@settings(max_examples=4)
def test_new_encoder_decoder_opens_in_transformers(name, data, tmp_path):
    parts = data.draw(parts_of(name))
    config = SEQ2SEQ_FAMILIES[name].make_config(**parts)
    assert {part: getattr(config, part) for part in parts} == parts
    model = enlivened(Seq2Seq(config))
    SEQ2SEQ_FAMILIES[name].save(model, tmp_path)
    theirs = getattr(transformers, KINDS[name][1]).from_pretrained(tmp_path).eval()
    ids, target = torch.randint(8, (2, 11)), torch.randint(8, (2, 7))
    # transformers counts M2M100's positions from the ids, so texts have no padding token
    ids[ids == config.pad_id], target[target == config.pad_id] = 8 - config.pad_id // 8, 8 - config.pad_id // 8
    keep = torch.arange(11) < torch.tensor([[11], [5]])
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=target, use_cache=False).logits
        assert_within(model(ids, target, masks.padding(keep)), expected)
    again = load_seq2seq(tmp_path)[0].config
    inner = {"head_dim": again.head_dim, "initializer_range": again.initializer_range}
    assert with_explicit_sizes(again) == replace(with_explicit_sizes(config), **inner)


@pytest.mark.parametrize("sizes", [(20, 30), (30, 20)])
def test_new_marian_with_two_vocabularies(sizes, tmp_path):
    parts = {"vocab_size": sizes[0], "target_vocab_size": sizes[1], "share_embeddings": False}
    config = SEQ2SEQ_FAMILIES["marian"].make_config(**parts, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1)
    assert (config.pad_id, config.start_id, config.tie_output) == (19, 19, True)
    model = enlivened(Seq2Seq(config))
    SEQ2SEQ_FAMILIES["marian"].save(model, tmp_path)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path).eval()
    ids, target = torch.randint(sizes[0], (2, 11)), torch.randint(sizes[1], (2, 7))
    with torch.no_grad():
        assert_within(model(ids, target), theirs(input_ids=ids, decoder_input_ids=target, use_cache=False).logits)


def test_defaults_of_the_families():
    config = {
        name: family.make_config(vocab_size=60000) for name, family in {**ENCODER_FAMILIES, **SEQ2SEQ_FAMILIES}.items()
    }
    assert (config["bert"].d_model, config["bert"].num_layers, config["bert"].activation) == (768, 12, "gelu")
    assert config["modernbert"].windows[:4] == (None, 64, 64, None)
    assert config["roberta"].max_len == 512
    marian = config["marian"]
    assert (marian.d_model, marian.num_layers, marian.activation, marian.embedding_scale) == (512, 6, "relu", True)
    assert marian.initializer_range is None
    assert (marian.pad_id, marian.start_id, marian.eos_ids) == (58100, 58100, (0,))
    assert (config["bart"].pad_id, config["bart"].start_id, config["bart"].eos_ids) == (1, 2, (2,))
    assert config["bart"].position_offset == 2
    assert config["m2m_100"].position_offset == 2
    assert (config["t5"].activation, config["t5"].tie_output, config["t5"].output_scale) == ("relu", True, True)
    assert (config["mt5"].activation, config["mt5"].tie_output, config["mt5"].output_scale) == (
        "geglu_tanh",
        False,
        False,
    )


@pytest.mark.parametrize(
    ("table", "wrong", "words"),
    [
        ("keys", {"hidden_size": ("dmodel", None)}, "keys of the family 'bert' has 'dmodel', but EncoderConfig has no"),
        ("constants", {"norm_oder": "post"}, "constants of the family 'bert' has .* did you mean 'norm_order'"),
        ("optional_modules", {"poller": "pooler.dense.weight"}, "optional_modules .* did you mean 'pooler'"),
        ("default_sizes", {"num_layer": 6}, "default_sizes .* did you mean 'num_layers'"),
    ],
)
def test_register_refuses_unknown_config_field(table, wrong, words):
    family = ENCODER_FAMILIES["bert"]
    with pytest.raises(ValueError, match=words):
        register(replace(family, model_type="bert", **{table: {**getattr(family, table), **wrong}}))


def test_missing_row_of_the_parameter_table_names_the_family(tmp_path):
    with pytest.raises(ValueError, match="family 'bert' has no row for pooler.dens.weight; .* 'pooler.dense.weight'"):
        ENCODER_FAMILIES["bert"].parameter_names.foreign_names("pooler.dens.weight")
    config = SEQ2SEQ_FAMILIES["bart"].make_config(vocab_size=12, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1)
    model = Seq2Seq(config)
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="parameter table of the family 'bart' has no row for extra.weight"):
        SEQ2SEQ_FAMILIES["bart"].save(model, tmp_path)


def test_derived_defaults():
    assert SEQ2SEQ_FAMILIES["marian"].make_config(vocab_size=10).start_id == 9
    assert SEQ2SEQ_FAMILIES["marian"].make_config(vocab_size=10, pad_id=3).start_id == 3
    assert SEQ2SEQ_FAMILIES["bart"].make_config(vocab_size=10, eos_ids=(5, 6)).start_id == 5
    assert SEQ2SEQ_FAMILIES["m2m_100"].make_config(vocab_size=10, pad_id=3).position_offset == 4
    assert SEQ2SEQ_FAMILIES["t5"].make_config(vocab_size=10, drop_prob=0.3).attention_drop_prob == 0.3
    assert not SEQ2SEQ_FAMILIES["t5"].make_config(vocab_size=10, tie_output=False).output_scale
    assert ENCODER_FAMILIES["modernbert"].make_config(vocab_size=10, num_layers=2).windows == (None, 64)


@pytest.mark.parametrize(
    ("family", "parts", "words"),
    [
        ("marian", {"norm_order": "pre"}, "norm_order='pre'; it needs 'post'; m2m_100, mbart, mt5, pegasus and t5 can"),
        ("marian", {"embedding_norm": True}, "embedding_norm=True; it needs False; bart and mbart can"),
        ("bart", {"positions": "sinusoidal"}, "positions='sinusoidal'; it needs 'learned'$"),
        ("bart", {"activation": "geglu"}, "activation='geglu'"),
        ("bart", {"share_embeddings": False}, "share_embeddings=False with tie_output=True"),
        (
            "bart",
            {"target_vocab_size": 15, "share_embeddings": False, "tie_output": False},
            "target_vocab_size=15 with vocab_size=12; it has one vocabulary",
        ),
        ("bart", {"depth": 3}, "has no field depth. Use one of: vocab_size, target_vocab_size"),
        ("bart", {"d_model": "8"}, "d_model='8'; expected a number"),
        ("bart", {"d_model": 2.5}, "d_model=2.5; expected an integer"),
        ("bart", {"pad_id": 12}, "pad_id=12 is outside of the vocabulary of 12 tokens"),
        ("bart", {"start_id": 99}, "start_id=99 is outside of"),
        ("bart", {"vocab_size": None}, "needs vocab_size"),
        ("m2m_100", {"position_offset": 7}, "needs position_offset = pad_id"),
        ("t5", {"decoder_num_heads": 1}, "the same feed-forward width and heads in encoder and decoder"),
        ("t5", {"max_len": 512}, "max_len=512; it needs None"),
        ("bert", {"positions": "rotary"}, "positions='rotary'; it needs 'learned'; .*modernbert.* can"),
        ("distilbert", {"pooler": True}, "pooler=True; it needs False; .*bert, .*xlm-roberta.* can"),
        ("mpnet", {"pad_id": 0}, "pad_token_id=0, which changes the result of the model"),
        ("bert", {"activation": "geglu"}, "activation='geglu'"),
        ("bert", {"pad_id": 12}, "pad_id=12 is outside of"),
        ("modernbert", {"windows": (3, 4), "num_layers": 2}, "the same window in all local layers"),
    ],
)
def test_unsupported_field_is_named(family, parts, words):
    with pytest.raises(ValueError, match=words):
        {**ENCODER_FAMILIES, **SEQ2SEQ_FAMILIES}[family].make_config(**{"vocab_size": 12, **parts})


@given(data=st.data())
@settings(max_examples=50)
def test_any_field_is_stored_or_refused(data, tmp_path):
    """A config with any single field can be saved, or raises a ValueError."""
    name = data.draw(st.sampled_from(list({**ENCODER_FAMILIES, **SEQ2SEQ_FAMILIES})))
    family = {**ENCODER_FAMILIES, **SEQ2SEQ_FAMILIES}[name]
    kind = EncoderConfig if name in ENCODER_FAMILIES else Seq2SeqConfig
    part = data.draw(st.sampled_from([part.name for part in fields(kind)]))
    words = ["pre", "post", "rms", "layer", "none", "learned", "rotary", "relu", "gelu", "geglu"]
    value = data.draw(st.sampled_from([None, True, False, 0, 1, 2, 0.5, (), (1,), *words]))
    sizes = {"vocab_size": 12, "d_model": 8, "ffn_hidden": 8, "num_heads": 2, "num_layers": 1}
    try:
        config = family.make_config(**(sizes | {part: value}))
    except ValueError:
        return
    assert getattr(config, part) == value
    family.save((EncoderModel if name in ENCODER_FAMILIES else Seq2Seq)(config), tmp_path)
