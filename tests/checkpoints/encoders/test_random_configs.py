"""Random configurations of each family: every hidden state and head equals transformers', in both directions."""

import random
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from support.models.families import NAMES
from support.models.random_configs import FIELDS, KEYS, batch, enlivened, theirs

from clearhead import EncoderModel, masks
from clearhead.checkpoints import (
    ENCODER_FAMILIES,
    load_classifier,
    load_encoder,
    load_masked_lm,
    load_span_classifier,
    new_classifier,
    new_masked_lm,
    new_span_classifier,
    save_masked_lm,
)

transformers.utils.logging.disable_progress_bar()

FAST, ALL = 2, 40
SEEDS = [seed if seed < FAST else pytest.param(seed, marks=pytest.mark.slow) for seed in range(ALL)]
HEADS = {
    "ForSequenceClassification": load_classifier,
    "ForQuestionAnswering": load_span_classifier,
    "ForMaskedLM": load_masked_lm,
}
# transformers 5.23 has no question answering for these
MISSING = {(family, "ForQuestionAnswering") for family in ("eurobert", "nomic_bert", "gte")}
CASES = [(family, kind) for family in KEYS for kind in HEADS if (family, kind) not in MISSING]


def assert_within(ours, other, bound=1e-5):
    # relative to the largest vector: the entries of one can nearly cancel, with a normal rounding error
    assert ours.shape == other.shape
    assert (ours - other).norm(dim=-1).max() < bound * other.norm(dim=-1).max()


def assert_same_tensors(one, other):
    before, after = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def states_of(model, ids, keep, types):
    """Return the input of the first layer and the output of each."""
    states = []
    layers = [model.embedding, *model.encoder.layers]
    hooks = [layer.register_forward_hook(lambda *call: states.append(call[2])) for layer in dict.fromkeys(layers)]
    if model.encoder.convolution is not None:  # its result is the state after the first layer
        hooks.append(model.encoder.convolution.register_forward_hook(lambda *call: states.__setitem__(-1, call[2])))
    last = model(ids, masks.padding(keep), types)
    for hook in hooks:
        hook.remove()
    return [*states[:-1], last]


def same_states(ours, model, ids, keep, types):
    """Compare all hidden states and the pooled vector; return our hidden states and the output of transformers."""
    expected = model(ids, **their_inputs(keep, types), output_hidden_states=True)
    states = states_of(ours, ids, keep, types)
    for one, other in zip(states, expected.hidden_states, strict=True):
        assert_within(one[keep], other[keep])
    if ours.pooler is not None:
        assert_within(ours.pooler(states[-1]), expected.pooler_output)
    return states, expected


def opened_by_transformers(family, encoder, folder):
    options = {"add_pooling_layer": True} if encoder.pooler is not None else {}
    return getattr(transformers, f"{NAMES[family]}Model").from_pretrained(folder, **options).eval()


def inputs_of(config):
    ids, keep = batch(config.pad_id)
    types = torch.randint(config.num_token_types, ids.shape) if config.num_token_types else None
    return ids, keep, types


def their_inputs(keep, types):
    return {"attention_mask": keep.long()} | ({} if types is None else {"token_type_ids": types})


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", KEYS)
@torch.no_grad()
def test_every_hidden_state_of_a_model_of_transformers(family, seed, tmp_path):
    model = theirs(family, "Model", seed, tmp_path / "theirs")
    ours, loaded = load_encoder(tmp_path / "theirs")
    ids, keep, types = inputs_of(ours.config)
    states, expected = same_states(ours, model, ids, keep, types)
    assert (ours.pooler is None) == (expected.get("pooler_output") is None)
    packed = ours(ids[keep][None], masks.packed(keep.sum(1).tolist()), None if types is None else types[keep][None])
    assert_within(packed[0], states[-1][keep])
    loaded.save(ours, tmp_path / "ours")
    assert_same_tensors(tmp_path / "theirs", tmp_path / "ours")
    same_states(ours, opened_by_transformers(family, ours, tmp_path / "ours"), ids, keep, types)
    assert load_encoder(tmp_path / "ours")[0].config == ours.config


def test_heads_that_transformers_lacks():
    lacks = {(family, kind) for family in KEYS for kind in HEADS if not hasattr(transformers, NAMES[family] + kind)}
    assert lacks == MISSING


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("family", "kind"), CASES)
@torch.no_grad()
def test_every_head_of_a_model_of_transformers(family, kind, seed, tmp_path):
    labels = {"num_labels": 1 + seed % 4} if kind == "ForSequenceClassification" else {}
    model = theirs(family, kind, seed, tmp_path / "theirs", **labels)
    ours, loaded = HEADS[kind](tmp_path / "theirs")
    ids, keep, types = inputs_of(ours.encoder.config)
    expected = their_logits(model, ids, keep, types)
    assert_within(our_logits(ours, ids, keep, types), expected)
    save(ours, loaded, tmp_path / "ours")
    assert_same_tensors(tmp_path / "theirs", tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    assert_within(their_logits(again, ids, keep, types), expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FIELDS)
@torch.no_grad()
def test_transformers_opens_new_models(family, seed, tmp_path):
    torch.manual_seed(seed)
    fields = FIELDS[family](random.Random(seed))
    config = ENCODER_FAMILIES[family].make_config(**fields)
    assert {name: getattr(config, name) for name in fields} == fields
    ours = ENCODER_FAMILIES[family]
    encoder = enlivened(EncoderModel(config))
    ours.save(encoder, tmp_path / "Model")
    ids, keep, types = inputs_of(config)
    same_states(encoder, opened_by_transformers(family, encoder, tmp_path / "Model"), ids, keep, types)
    again = load_encoder(tmp_path / "Model")[0].config
    assert again == replace(config, embedding_dim=again.embedding_dim, initializer_range=again.initializer_range)
    assert again.embedding_width == config.embedding_width
    for kind, new in {
        "ForSequenceClassification": lambda: new_classifier(encoder, ours, ["one", "two", "three"]),
        "ForQuestionAnswering": lambda: new_span_classifier(encoder, ours),
        "ForMaskedLM": lambda: new_masked_lm(encoder, ours),
    }.items():
        if (family, kind) in MISSING:
            continue
        head = enlivened(new())
        save(head, ours, tmp_path / kind)
        model = getattr(transformers, f"{NAMES[family]}{kind}").from_pretrained(tmp_path / kind).eval()
        assert_within(our_logits(head, ids, keep, types), their_logits(model, ids, keep, types))


def our_logits(model, ids, keep, types):
    logits = model(ids, masks.padding(keep), types)
    logits = torch.stack(logits, dim=-1) if isinstance(logits, tuple) else logits
    return logits[keep] if logits.ndim == 3 else logits


def their_logits(model, ids, keep, types):
    output = model(ids, **their_inputs(keep, types))
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)[keep]
    return output.logits[keep] if output.logits.ndim == 3 else output.logits


def save(model, family, folder):
    if hasattr(model, "head_config"):
        family.save_with_head(model, folder)
    else:
        save_masked_lm(model, family, folder)
