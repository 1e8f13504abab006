"""lint() reports planted mistakes in models of this library and of torch.nn."""

import pytest
import torch
from support.lint.examples import (
    ATTENDED,
    BOTH,
    CAUSAL,
    EVERY,
    FULL,
    FUTURE,
    IDS,
    IGNORED,
    INVERTED,
    KEEP,
    LEAKS,
    MASK,
    MEMORY_MASKS,
    NOT_A_NUMBER,
    NOTHING,
    ONE_CLOSED,
    ONE_TEXT,
    SIZES,
    SOURCE,
    SWAPPED,
    TARGET,
    TARGET_KEEP,
    TARGET_MASK,
    UPSIDE_DOWN,
    MeanOfOurs,
    OurMemoryMask,
    X,
    Y,
    assert_reported,
    attention,
    broken,
    encoder,
    right_torch,
    torch_encoder,
    torch_transformer,
)

from clearhead import CrossAttention, Decoder, MultiHeadAttention, Seq2Seq, Seq2SeqConfig, lint, masks


def self_attention(**attention_masks):
    return {"query": X, "key": X, "value": X} | attention_masks


# model, batch, arguments about padding, and the rule that must match
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
    "torch.nn: the target's mask inverted": (torch_transformer, right_torch(tgt_key_padding_mask=TARGET_KEEP), BOTH, INVERTED),
    "ours: the target's mask inverted": (
        lambda: Seq2Seq(Seq2SeqConfig(**SIZES)),
        {"ids": IDS, "target_ids": TARGET, "mask": MASK, "target_mask": masks.padding(~TARGET_KEEP)},
        BOTH,
        INVERTED,
    ),
}  # fmt: skip
for fault, (keep_memory, rule) in MEMORY_MASKS.items():
    PLANTED |= {
        f"ours: memory mask {fault}": (OurMemoryMask, {"ids": IDS, "target_ids": TARGET, "memory_mask": masks.padding(keep_memory)}, BOTH, rule),
        f"torch.nn: memory mask {fault}": (torch_transformer, right_torch(memory_key_padding_mask=~keep_memory), BOTH, rule),
        f"torch.nn: memory mask {fault}, the length first": (
            lambda: torch_transformer(batch_first=False),
            right_torch(src=X.transpose(0, 1), tgt=Y.transpose(0, 1), memory_key_padding_mask=~keep_memory),
            BOTH,
            rule,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_reports_planted_mistake(name):
    assert_reported(*PLANTED[name])


def test_swapped_masks_are_one_finding():
    swapped = dict(PLANTED["torch.nn: swapped"][1])
    assert [finding.rule for finding in lint(torch_transformer(), swapped, **BOTH)] == [SWAPPED]
    del swapped["tgt_mask"]
    assert FUTURE in [finding.rule for finding in lint(torch_transformer(), swapped, **BOTH)]
