"""Layers, masks and layouts that lint() distinguishes, and the places that its findings name."""

import pytest
import torch
import transformers
from support.lint.examples import (
    ATTENDED,
    BERT,
    BOTH,
    CAUSAL,
    FUTURE,
    IDS,
    IGNORED,
    INVERTED,
    KEEP,
    LENGTHS,
    MASK,
    ONE_CLOSED,
    ONE_TEXT,
    PAD,
    SIZES,
    SWAPPED,
    TARGET_KEEP,
    X,
    Y,
    broken,
    encoder,
    right_torch,
    torch_encoder,
    torch_transformer,
)
from support.lint.torch_nn import Layers, LengthFirstEncoder, LengthFirstTransformer
from torch import nn

from clearhead import Encoder, EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, lint, masks


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


def test_end_token_equal_to_padding_is_real_if_mask_shows_it():
    model = transformers.BertModel(transformers.BertConfig(**BERT.to_diff_dict() | {"eos_token_id": PAD}))
    ends = torch.arange(6) == torch.tensor(LENGTHS)[:, None] - 1
    batch = {"input_ids": IDS.masked_fill(ends, PAD), "attention_mask": KEEP.long()}
    assert lint(model, batch) == []
    batch["attention_mask"] = torch.ones_like(KEEP).long()
    assert [finding.rule for finding in lint(model, batch)] == [ATTENDED]
