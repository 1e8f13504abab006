"""lint() reports planted mistakes in models of this library, torch.nn and transformers."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import transformers
from support.linting import (
    ATTENDED,
    BERT,
    CAUSAL,
    EVERY,
    FULL,
    FUTURE,
    IDS,
    IGNORED,
    INVERTED,
    KEEP,
    LEAKS,
    LENGTHS,
    MARIAN,
    MARIAN_SIZES,
    MASK,
    NOT_A_NUMBER,
    NOTHING,
    ONE_CLOSED,
    ONE_TEXT,
    PAD,
    SIZES,
    SWAPPED,
    T5,
    TARGET,
    TARGET_KEEP,
    TARGET_MASK,
    UPSIDE_DOWN,
    MeanOfOurs,
    MeanOfTheirs,
    OurMemoryMask,
    TheirMemoryMask,
    X,
    Y,
    attention,
    broken,
    eager_bert,
    encoder,
    right_torch,
    torch_encoder,
    torch_transformer,
)
from support.linting_torch_nn import Layers, LengthFirstEncoder, LengthFirstTransformer, Pooled, Prefixed
from torch import nn

from clearhead import (
    CrossAttention,
    Decoder,
    Encoder,
    EncoderConfig,
    EncoderModel,
    MultiHeadAttention,
    Seq2Seq,
    Seq2SeqConfig,
    lint,
    masks,
)

# model, batch, arguments about padding, and the rule that must match
SOURCE, BOTH = {"keep": KEEP}, {"keep": KEEP, "target_keep": TARGET_KEEP}


def self_attention(**attention_masks):
    return {"query": X, "key": X, "value": X} | attention_masks


PLANTED = {
    "ours: inverted": (encoder, {"ids": IDS, "mask": ~KEEP[:, None, None]}, {}, INVERTED),
    "ours: no mask": (encoder, {"ids": IDS}, {}, ATTENDED),
    "ours: a causal encoder": (encoder, {"ids": IDS, "mask": MASK & masks.causal(6)}, {}, "encoder-causal"),
    "ours: floats 0 and 1": (encoder, {"ids": IDS, "mask": KEEP[:, None, None].float()}, {}, NOTHING),
    "ours: a mask that is False everywhere": (
        encoder,
        {"ids": IDS, "mask": torch.zeros(6, 6, dtype=torch.bool)},
        {},
        "nothing-attended",
    ),
    "ours: a mask that hides words": (
        encoder,
        {"ids": IDS, "mask": masks.padding(KEEP & (torch.arange(6) != 1))},
        {},
        IGNORED,
    ),
    "ours: pooled with padding": (lambda: MeanOfOurs(encoder()), {"ids": IDS, "mask": MASK}, {}, LEAKS),
    "ours: swapped": (
        lambda: Seq2Seq(Seq2SeqConfig(**SIZES)),
        {"ids": IDS, "target_ids": TARGET, "mask": TARGET_MASK, "target_mask": MASK},
        {},
        SWAPPED,
    ),
    "ours: a decoder without its mask": (
        lambda: Decoder(8, 12, 2, 0.1, 2),
        {"x": Y, "memory": X, "memory_mask": MASK},
        BOTH,
        FUTURE,
    ),
    "ours: a causal mask upside down": (
        lambda: Decoder(8, 12, 2, 0.1, 2),
        {"x": Y, "memory": X, "mask": torch.ones(6, 6, dtype=torch.bool).triu(), "memory_mask": MASK},
        BOTH,
        UPSIDE_DOWN,
    ),
    "ours: a memory without its mask": (
        lambda: Decoder(8, 12, 2, 0.1, 2),
        {"x": Y, "memory": X, "mask": masks.causal(6)},
        BOTH,
        ATTENDED,
    ),
    "ours: the memory's mask inverted": (
        lambda: Decoder(8, 12, 2, 0.1, 2),
        {"x": Y, "memory": X, "mask": masks.causal(6), "memory_mask": ~KEEP[:, None, None]},
        BOTH,
        INVERTED,
    ),
    "torch.nn: inverted": (torch_encoder, {"src": X, "src_key_padding_mask": KEEP}, SOURCE, INVERTED),
    "torch.nn: inverted, all rows padded": (
        torch_encoder,
        {"src": X[1:], "src_key_padding_mask": KEEP[1:]},
        {"keep": KEEP[1:]},
        INVERTED,
    ),
    "torch.nn: no mask": (torch_encoder, {"src": X}, SOURCE, ATTENDED),
    "torch.nn: floats 0 and 1": (torch_encoder, {"src": X, "src_key_padding_mask": (~KEEP).float()}, SOURCE, NOTHING),
    "torch.nn: a causal encoder": (
        torch_encoder,
        {"src": X, "mask": CAUSAL, "src_key_padding_mask": ~KEEP},
        SOURCE,
        "encoder-causal",
    ),
    "torch.nn: no causal mask": (torch_transformer, right_torch(tgt_mask=None), BOTH, FUTURE),
    "torch.nn: the causal mask inverted": (
        torch_transformer,
        right_torch(tgt_mask=torch.ones(6, 6, dtype=torch.bool).tril(-1), tgt_key_padding_mask=None),
        BOTH,
        UPSIDE_DOWN,
    ),
    "torch.nn: a causal mask of floats 0 and 1": (torch_transformer, right_torch(tgt_mask=EVERY.float().triu(1)), BOTH, NOTHING),
    "ours: a causal mask of floats 0 and 1": (
        lambda: Decoder(8, 12, 2, 0.1, 2),
        {"x": Y, "memory": X, "mask": EVERY.float().triu(1), "memory_mask": MASK},
        BOTH,
        NOTHING,
    ),
    "torch.nn: no memory mask": (torch_transformer, right_torch(memory_key_padding_mask=None), BOTH, ATTENDED),
    "torch.nn: swapped": (
        torch_transformer,
        right_torch(
            src_key_padding_mask=~TARGET_KEEP, tgt_key_padding_mask=~KEEP, memory_key_padding_mask=~TARGET_KEEP
        ),
        BOTH,
        SWAPPED,
    ),
    "torch.nn: the length first": (
        lambda: torch_encoder(batch_first=False),
        {"src": X.transpose(0, 1)},
        SOURCE,
        ATTENDED,
    ),
    "transformers: no mask": (lambda: transformers.BertModel(BERT), {"input_ids": IDS}, {}, ATTENDED),
    "transformers: inverted": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS[1:], "attention_mask": (~KEEP[1:]).long()},
        {},
        INVERTED,
    ),
    "transformers: a causal encoder": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": (EVERY.tril() & KEEP[:, None])[:, None]},
        {},
        "encoder-causal",
    ),
    "transformers: a decoder without its mask": (
        lambda: transformers.MarianMTModel(MARIAN),
        {
            "input_ids": IDS,
            "attention_mask": KEEP.long(),
            "decoder_input_ids": TARGET,
            "decoder_attention_mask": (EVERY & TARGET_KEEP[:, None])[:, None],
        },
        {"target_keep": TARGET_KEEP},
        FUTURE,
    ),
    "transformers: floats 0 and 1": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": (EVERY & KEEP[:, None])[:, None].float()},
        {},
        NOTHING,
    ),
    "transformers: pooled with padding": (
        lambda: MeanOfTheirs(transformers.BertModel(BERT)),
        {"input_ids": IDS, "attention_mask": KEEP.long()},
        {},
        LEAKS,
    ),
    "transformers: a translator without a mask": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS, "decoder_input_ids": TARGET},
        {},
        ATTENDED,
    ),
    "ours: a query without keys": (encoder, {"ids": IDS, "mask": ONE_CLOSED}, {}, FULL),
    "ours: a text without keys": (encoder, {"ids": IDS, "mask": masks.padding(ONE_TEXT)}, {}, FULL),
    "ours: a query without keys, in floats": (
        encoder,
        {"ids": IDS, "mask": torch.where(ONE_CLOSED, 0.0, -1e4)},
        {},
        FULL,
    ),
    "ours: a memory without keys": (
        lambda: Decoder(8, 12, 2, 0.1, 2),
        {"x": Y, "memory": X, "mask": masks.causal(6), "memory_mask": masks.padding(ONE_TEXT)},
        BOTH,
        FULL,
    ),
    "ours: a float mask that is not low enough": (
        encoder,
        {"ids": IDS, "mask": torch.where(KEEP, 0.0, -50.0)[:, None, None]},
        {},
        NOTHING,
    ),
    "ours: inverted, in floats": (
        encoder,
        {"ids": IDS, "mask": torch.where(KEEP, -1e4, 0.0)[:, None, None]},
        {},
        INVERTED,
    ),
    "ours: a weight that is NaN": (
        lambda: broken(encoder(), "encoder.layers.1.feedforward.inner.weight"),
        {"ids": IDS, "mask": MASK},
        {},
        NOT_A_NUMBER,
    ),
    "ours: one attention inverted": (lambda: MultiHeadAttention(8, 2), {"x": X, "mask": ~KEEP[:, None, None]}, SOURCE, INVERTED),
    "ours: one cross-attention without a mask": (lambda: CrossAttention(8, 2), {"x": Y, "memory": X}, SOURCE, ATTENDED),
    "torch.nn: a query without keys": (
        torch_encoder,
        {"src": X, "mask": ~EVERY | (torch.arange(6) == 2)[:, None], "src_key_padding_mask": ~KEEP},
        SOURCE,
        FULL,
    ),
    "torch.nn: a text without keys": (torch_encoder, {"src": X, "src_key_padding_mask": ~ONE_TEXT}, SOURCE, FULL),
    "torch.nn: a memory without keys": (torch_transformer, right_torch(memory_key_padding_mask=~ONE_TEXT), BOTH, FULL),
    "torch.nn: a weight that is NaN": (
        lambda: broken(torch_encoder(), "layers.1.linear1.weight"),
        {"src": X, "src_key_padding_mask": ~KEEP},
        SOURCE,
        NOT_A_NUMBER,
    ),
    "torch.nn: one attention without a mask": (attention(), self_attention(), SOURCE, ATTENDED),
    "torch.nn: one attention inverted": (attention(), self_attention(key_padding_mask=KEEP), SOURCE, INVERTED),
    "torch.nn: one attention, floats 0 and 1": (attention(), self_attention(key_padding_mask=(~KEEP).float()), SOURCE, NOTHING),
    "torch.nn: one attention upside down": (
        attention(),
        self_attention(attn_mask=EVERY.tril(-1), key_padding_mask=~KEEP),
        SOURCE,
        UPSIDE_DOWN,
    ),
    "torch.nn: one attention, a query without keys": (
        attention(),
        self_attention(attn_mask=EVERY & (torch.arange(6) == 2)[:, None]),
        {},
        FULL,
    ),
    "torch.nn: one cross-attention inverted": (
        attention(batch_first=False),
        {"query": Y[:, :4].transpose(0, 1), "key": X.transpose(0, 1), "value": X.transpose(0, 1), "key_padding_mask": KEEP},
        SOURCE,
        INVERTED,
    ),
    "transformers: a query without keys": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": ONE_CLOSED},
        {},
        FULL,
    ),
    "transformers: a text without keys": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": ONE_TEXT.long()},
        {},
        FULL,
    ),
    "transformers: a text without keys, eager": (
        eager_bert,
        {"input_ids": IDS, "attention_mask": ONE_TEXT.long()},
        {},
        FULL,
    ),
    "transformers: a source without keys": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS, "attention_mask": ONE_TEXT.long(), "labels": TARGET},
        {},
        FULL,
    ),
    "transformers: a weight that is NaN": (
        lambda: broken(transformers.BertModel(BERT), "encoder.layer.0.intermediate.dense.weight"),
        {"input_ids": IDS, "attention_mask": KEEP.long()},
        {},
        NOT_A_NUMBER,
    ),
    "transformers: spans without a mask": (
        lambda: transformers.BertForQuestionAnswering(BERT),
        {"input_ids": IDS},
        {},
        ATTENDED,
    ),
    "transformers: labels of a model without a shift method, and no mask": (
        lambda: transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**MARIAN_SIZES)),
        {"input_ids": IDS, "labels": torch.where(TARGET_KEEP, TARGET, -100)[:, :5].contiguous()},
        {},
        ATTENDED,
    ),
    "transformers: labels, and a mask inverted": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS[1:], "attention_mask": (~KEEP[1:]).long(), "labels": TARGET[1:, :4].contiguous()},
        {},
        INVERTED,
    ),
    "transformers: swapped": (
        lambda: transformers.T5ForConditionalGeneration(T5),
        {
            "input_ids": IDS,
            "attention_mask": TARGET_KEEP.long(),
            "decoder_input_ids": TARGET,
            "decoder_attention_mask": KEEP.long(),
        },
        {},
        SWAPPED,
    ),
}  # fmt: skip
MEMORY_MASKS = {
    "inverted": (~KEEP, INVERTED),
    "is the target's": (TARGET_KEEP, SWAPPED),
    "hides text": (KEEP & (torch.arange(6) < 1), IGNORED),
}
TARGET_INVERTED = {"decoder_input_ids": TARGET, "decoder_attention_mask": (~TARGET_KEEP).long()}
for make_model, library, inverted in (
    (torch_transformer, "torch.nn", right_torch(tgt_key_padding_mask=TARGET_KEEP)),
    (
        lambda: Seq2Seq(Seq2SeqConfig(**SIZES)),
        "ours",
        {"ids": IDS, "target_ids": TARGET, "mask": MASK, "target_mask": masks.padding(~TARGET_KEEP)},
    ),
    (
        lambda: transformers.MarianMTModel(MARIAN),
        "transformers",
        {"input_ids": IDS, "attention_mask": KEEP.long()} | TARGET_INVERTED,
    ),
):
    PLANTED[f"{library}: the target's mask inverted"] = (make_model, inverted, BOTH, INVERTED)
for fault, (keep_memory, rule) in MEMORY_MASKS.items():
    theirs = {"input_ids": IDS, "decoder_input_ids": TARGET, "memory_mask": keep_memory}
    PLANTED |= {
        f"ours: memory mask {fault}": (OurMemoryMask, {"ids": IDS, "target_ids": TARGET, "memory_mask": masks.padding(keep_memory)}, BOTH, rule),
        f"torch.nn: memory mask {fault}": (torch_transformer, right_torch(memory_key_padding_mask=~keep_memory), BOTH, rule),
        f"torch.nn: memory mask {fault}, the length first": (
            lambda: torch_transformer(batch_first=False),
            right_torch(src=X.transpose(0, 1), tgt=Y.transpose(0, 1), memory_key_padding_mask=~keep_memory),
            BOTH,
            rule,
        ),
        f"transformers: memory mask {fault}": (TheirMemoryMask, theirs, BOTH, rule),
    }  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_reports_planted_mistake(name):
    make_model, batch, known, rule = PLANTED[name]
    torch.manual_seed(0)
    model = make_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    findings = lint(model, batch, **known)
    assert [finding.rule for finding in findings][:1] == [rule], list(map(str, findings))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0, equal_nan=True)
    assert findings[0].where
    assert findings[0].explanation
    assert findings[0].fix


def test_eager_model_does_not_change_later_models():
    assert eager_bert().config._attn_implementation == "eager"
    batch = {"input_ids": IDS, "attention_mask": ONE_CLOSED}
    assert [finding.rule for finding in lint(transformers.BertModel(BERT), batch)] == [FULL]


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


def test_lints_encoder_stack():
    stack, x = Encoder(8, 12, 2, 0.0, 1), torch.randn(3, 6, 8)
    assert lint(stack, {"x": x, "mask": MASK}, keep=KEEP) == []
    assert [finding.rule for finding in lint(stack, {"x": x}, keep=KEEP)] == [ATTENDED]


def test_long_text_in_batch_with_short_text():
    keep = torch.arange(150) < torch.tensor([150, 70, 3])[:, None]
    ids = torch.where(keep, torch.randint(3, 20, keep.shape), PAD)
    for model in (encoder(), EncoderModel(EncoderConfig(**SIZES, windows=(3, 3)))):
        assert lint(model, {"ids": ids, "mask": masks.padding(keep)}) == []
    cut = masks.padding(keep & (torch.arange(150) != 77))
    assert [finding.rule for finding in lint(encoder(), {"ids": ids, "mask": cut})] == [IGNORED]


def test_finding_names_masked_row_and_nan_weight():
    (finding,) = lint(encoder(), {"ids": IDS, "mask": ONE_CLOSED})
    assert finding.where == "encoder.layers.0.attention, row 0, position 2"
    (finding,) = lint(torch_transformer(), right_torch(memory_key_padding_mask=~ONE_TEXT), **BOTH)
    assert finding.where == "decoder.layers.0.multihead_attn, row 1, position 0"
    spoilt = broken(broken(torch_encoder(), "layers.0.linear2.weight"), "layers.1.linear1.weight")
    (finding,) = lint(spoilt, {"src": X, "src_key_padding_mask": ~KEEP}, keep=KEEP)
    assert finding.where == "layers.0.linear2.weight, 1 of 96"
    src = X.clone()
    src[0, 0, 0] = torch.nan
    (finding,) = lint(torch_encoder(), {"src": src, "src_key_padding_mask": ~KEEP}, keep=KEEP)
    assert (finding.rule, finding.where) == ("nonfinite-input", "the source")


def test_pooling_first_token_with_left_padding():
    left = KEEP.flip(1)
    batch = {"input_ids": torch.where(left, IDS.flip(1), PAD), "attention_mask": left.long()}
    (finding,) = lint(transformers.BertForSequenceClassification(BERT), batch)
    assert (finding.rule, finding.where) == (LEAKS, "pooling, row 1, position 0")
    assert finding.fix == "Use the first real token, or pad on the right."
    (finding,) = lint(MeanOfTheirs(transformers.BertModel(BERT)), batch)
    assert "Pool with the mask" in finding.fix


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


class EncoderWithPadding(nn.Module):
    """An encoder that returns its states and its padding mask."""

    def __init__(self, encoder):
        super().__init__()
        self.inner = encoder

    def forward(self, src, padding):
        return self.inner(src, src_key_padding_mask=padding), padding


class LengthFirst(nn.Module):
    """A Transformer with the length first, and a float padding mask that is compared with 0."""

    def __init__(self):
        super().__init__()
        transformer = nn.Transformer(8, 2, 1, 1, 12)
        self.encoder, self.decoder = EncoderWithPadding(transformer.encoder), transformer.decoder

    def forward(self, src, tgt, mask, tgt_mask=None):
        memory, padding = self.encoder(src, mask == 0)
        return self.decoder(tgt, memory, tgt_mask=tgt_mask, memory_key_padding_mask=padding)


def test_encoder_that_returns_a_tuple():
    batch = {"src": X.transpose(0, 1), "tgt": Y.transpose(0, 1), "mask": KEEP.float(), "tgt_mask": CAUSAL}
    known = {"keep": KEEP, "target_keep": torch.ones_like(TARGET_KEEP)}
    assert lint(LengthFirst(), batch, **known) == []
    del batch["tgt_mask"]
    assert [finding.rule for finding in lint(LengthFirst(), batch, **known)] == [FUTURE]


class StatesAndPooled(nn.Module):
    """States, and a pooled vector with or without padding, in several forms of output."""

    def __init__(self, form, leaks):
        super().__init__()
        self.encoder, self.head, self.form, self.leaks = encoder(), nn.Linear(8, 1), form, leaks

    def forward(self, ids):
        keep = ids != PAD
        states = self.encoder(ids, masks.padding(keep))
        real = torch.ones_like(keep)[..., None] if self.leaks else keep[..., None]
        pooled = (states * real).sum(dim=1) / real.sum(dim=1)
        mapping = {"states": states, "pooled": pooled}
        return {"tuple": (states, pooled), "mapping": mapping, "score": self.head(pooled)[:, 0]}[self.form]


@pytest.mark.parametrize("leaks", [True, False])
@pytest.mark.parametrize("form", ["tuple", "mapping", "score"])
def test_pooled_vectors_next_to_states_and_as_scores(form, leaks):
    findings = lint(StatesAndPooled(form, leaks), {"ids": IDS})
    assert [finding.rule for finding in findings] == (["pooled-padding"] if leaks else [])


@pytest.mark.parametrize("rows", [2, 6])  # with 6 rows, the shapes do not show the layout
def test_wrapped_torch_nn_with_either_layout(rows):
    torch.manual_seed(0)
    ids = torch.where(
        torch.arange(6) < torch.tensor([6, 3, 2, 6, 5, 4])[:rows, None], torch.randint(3, 20, (rows, 6)), PAD
    )
    assert [one.rule for one in lint(LengthFirstEncoder(mask_padding=False), {"src": ids})] == [ATTENDED]
    assert [one.rule for one in lint(LengthFirstEncoder(mask_padding=False, first=False), {"src": ids.T})] == [ATTENDED]
    assert [one.rule for one in lint(LengthFirstTransformer(causal=False), {"src": ids, "tgt": ids})] == [FUTURE]


def test_reports_last_target_token_hidden_from_itself():
    keep = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    target_keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    x, y = torch.randn(2, 2, 6, 8).unbind()
    batch = {"src": x, "tgt": y, "tgt_mask": CAUSAL, "src_key_padding_mask": ~keep, "memory_key_padding_mask": ~keep}
    for first in (True, False):
        arranged = {name: batch[name] if first else batch[name].transpose(0, 1) for name in ("src", "tgt")}
        for mask, rules in ((keep, [SWAPPED]), (target_keep, [])):
            inputs = batch | arranged | {"tgt_key_padding_mask": ~mask}
            findings = lint(torch_transformer(batch_first=first), inputs, keep=keep, target_keep=target_keep)
            assert [finding.rule for finding in findings] == rules
    ids, target = (torch.where(kept, torch.randint(3, 20, (2, 6)), PAD) for kept in (keep, target_keep))
    inputs = {"ids": ids, "target_ids": target, "mask": masks.padding(keep), "target_mask": masks.padding(keep)}
    findings = lint(Seq2Seq(Seq2SeqConfig(**SIZES)), inputs, keep=keep, target_keep=target_keep)
    assert [finding.rule for finding in findings] == [SWAPPED]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["Bart", "Marian", "T5"])
def test_reports_last_target_token_hidden_by_transformers_mask(family, attention):
    keep, target_keep = torch.arange(6) < torch.tensor([[6], [3]]), torch.arange(6) < torch.tensor([[6], [4]])
    if family == "T5":
        sizes = {"d_model": 8, "d_ff": 12, "d_kv": 4, "num_heads": 2, "num_layers": 2}
    else:
        sizes = {"d_model": 8, "max_position_embeddings": 16}
        for part in ("encoder", "decoder"):
            sizes |= {f"{part}_layers": 1, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 12}
    ids_given = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": 2}
    config = getattr(transformers, f"{family}Config")(vocab_size=20, **ids_given, **sizes)
    model = getattr(transformers, {"Marian": "MarianMTModel"}.get(family, f"{family}ForConditionalGeneration"))(config)
    model.set_attn_implementation(attention)
    ids, target = (torch.where(kept, torch.randint(3, 20, (2, 6)), PAD) for kept in (keep, target_keep))
    for mask, rules in ((keep, [SWAPPED]), (target_keep, [])):
        batch = {"input_ids": ids, "attention_mask": keep.long()}
        findings = lint(model, batch | {"decoder_input_ids": target, "decoder_attention_mask": mask.long()})
        assert [finding.rule for finding in findings] == rules


@pytest.mark.parametrize("pool", ["a divisor that counts padding", "a maximum over zeros"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("embed", ["module", "function"])
def test_reports_counted_padding_without_gradient(pool, first, embed):
    (finding,) = lint(Pooled(pool, first, embed), {"src": IDS})
    assert (finding.rule, finding.where) == (LEAKS, "pooling, row 2")
    assert "Divide by the number of real tokens" in finding.fix
    assert lint(Pooled(pool, first, embed), {"src": IDS[:, :2]}) == []  # no padding in this batch


def test_reports_counted_padding_with_any_mask():
    class MeanWithPadding(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = encoder()

        def forward(self, ids, mask):
            states = self.body(ids, mask)
            return (states * (ids != PAD)[..., None]).mean(dim=1)

    for mask in (MASK, KEEP[:, None, None], torch.where(KEEP[:, None, None], 0.0, -torch.inf)):
        assert [finding.rule for finding in lint(MeanWithPadding(), {"ids": IDS, "mask": mask})] == [LEAKS]


def test_reports_counted_padding_in_square_batch():
    ids = IDS[[0, 1, 2, 0, 1, 2]]
    findings = lint(Pooled("a divisor that counts padding", True, "module"), {"src": ids})
    assert [finding.rule for finding in findings] == [LEAKS]
    assert lint(Pooled("a mean", True, "module"), {"src": ids}) == []


@pytest.mark.parametrize(
    ("causal", "inverted", "rule"),
    [(0, None, "encoder-causal"), (1, None, "encoder-causal"), (None, 0, INVERTED), (None, 1, INVERTED)],
)
def test_finding_names_layer(causal, inverted, rule):
    (finding,) = lint(Layers(causal, inverted), {"src": X, "padding": ~KEEP}, keep=KEEP)
    assert (finding.rule, finding.where.split(",")[0]) == (
        rule,
        f"layers.{causal if inverted is None else inverted}.self_attn",
    )
    assert lint(Layers(None, None), {"src": X, "padding": ~KEEP}, keep=KEEP) == []


def test_reports_inverted_mask_with_text_of_one_token():
    keep = torch.tensor([[True] * 4, [True] + [False] * 3])
    (finding,) = lint(torch_encoder(), {"src": X[:2, :4], "src_key_padding_mask": keep}, keep=keep)
    assert finding.rule == INVERTED


def test_reports_causal_mask_on_cross_attention():
    known = {"keep": KEEP, "target_keep": torch.ones_like(TARGET_KEEP)}
    batch = right_torch(memory_mask=CAUSAL, tgt_key_padding_mask=None)
    assert [finding.rule for finding in lint(torch_transformer(), batch, **known)] == ["cross-attention-causal"]
    wide = {**batch, "src": X[:, :4], "memory_mask": CAUSAL[:, :4]}
    wide |= dict.fromkeys(("src_key_padding_mask", "memory_key_padding_mask"), ~KEEP[:, :4])
    known["keep"] = KEEP[:, :4]
    assert [finding.rule for finding in lint(torch_transformer(), wide, **known)] == ["cross-attention-causal"]


@pytest.mark.parametrize(("missing", "part"), [("memory", "cross-attention"), ("src", "the encoder's self-attention")])
def test_float_mask_of_another_attention_is_not_the_cause(missing, part):
    batch = right_torch(tgt_key_padding_mask=torch.zeros(3, 6), **{f"{missing}_key_padding_mask": None})
    (finding,) = lint(torch_transformer(), batch, keep=KEEP, target_keep=torch.ones_like(KEEP))
    assert (finding.rule, finding.where.split(",")[0]) == (ATTENDED, part)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_model_that_prepends_a_token(pool):
    assert lint(Prefixed(pool), {"ids": IDS}) == []
    (finding,) = lint(Prefixed(pool, mask_padding=False), {"ids": IDS})
    assert finding.rule == LEAKS
    assert "for all positions" in finding.fix
    with pytest.raises(ValueError, match="7 vectors for each text, but the source has 6"):
        lint(Prefixed("none"), {"ids": IDS})


def test_enables_gradients_under_no_grad():
    with torch.no_grad():
        assert lint(encoder(), {"ids": IDS, "mask": MASK}) == []
        assert [finding.rule for finding in lint(encoder(), {"ids": IDS})] == [ATTENDED]
        assert not torch.is_grad_enabled()


def test_swapped_masks_are_one_finding():
    swapped = dict(PLANTED["torch.nn: swapped"][1])
    assert [finding.rule for finding in lint(torch_transformer(), swapped, **BOTH)] == [SWAPPED]
    del swapped["tgt_mask"]
    assert FUTURE in [finding.rule for finding in lint(torch_transformer(), swapped, **BOTH)]


def test_end_token_equal_to_padding_is_real_if_mask_shows_it():
    model = transformers.BertModel(transformers.BertConfig(**BERT.to_diff_dict() | {"eos_token_id": PAD}))
    ends = torch.arange(6) == torch.tensor(LENGTHS)[:, None] - 1
    batch = {"input_ids": IDS.masked_fill(ends, PAD), "attention_mask": KEEP.long()}
    assert lint(model, batch) == []
    batch["attention_mask"] = torch.ones_like(KEEP).long()
    assert [finding.rule for finding in lint(model, batch)] == [ATTENDED]


def test_refuses_inference_mode():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"inference_mode\(\) disables"):
        lint(encoder(), {"ids": IDS})


def test_message_names_argument_of_wrong_shape():
    with pytest.raises(ValueError, match=r"target_keep must have the shape \(3, 6\); got \(3, 5\)"):
        lint(torch_transformer(), right_torch(), keep=KEEP, target_keep=TARGET_KEEP[:, :5])
