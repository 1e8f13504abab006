"""lint() reports planted mistakes in models of transformers."""

import pytest
import torch
import transformers
from support.lint.examples import (
    ATTENDED,
    BERT,
    BOTH,
    EVERY,
    FULL,
    FUTURE,
    IDS,
    INVERTED,
    KEEP,
    LEAKS,
    MARIAN,
    MARIAN_SIZES,
    MEMORY_MASKS,
    NOT_A_NUMBER,
    NOTHING,
    ONE_CLOSED,
    ONE_TEXT,
    SWAPPED,
    T5,
    TARGET,
    TARGET_KEEP,
    MeanOfTheirs,
    TheirMemoryMask,
    assert_reported,
    broken,
    eager_bert,
)

from clearhead import lint

# model, batch, arguments about padding, and the rule that must match
PLANTED = {
    "no mask": (lambda: transformers.BertModel(BERT), {"input_ids": IDS}, {}, ATTENDED),
    "inverted": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS[1:], "attention_mask": (~KEEP[1:]).long()},
        {},
        INVERTED,
    ),
    "a causal encoder": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": (EVERY.tril() & KEEP[:, None])[:, None]},
        {},
        "encoder-causal",
    ),
    "a decoder without its mask": (
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
    "floats 0 and 1": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": (EVERY & KEEP[:, None])[:, None].float()},
        {},
        NOTHING,
    ),
    "pooled with padding": (
        lambda: MeanOfTheirs(transformers.BertModel(BERT)),
        {"input_ids": IDS, "attention_mask": KEEP.long()},
        {},
        LEAKS,
    ),
    "a translator without a mask": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS, "decoder_input_ids": TARGET},
        {},
        ATTENDED,
    ),
    "a query without keys": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": ONE_CLOSED},
        {},
        FULL,
    ),
    "a text without keys": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS, "attention_mask": ONE_TEXT.long()},
        {},
        FULL,
    ),
    "a text without keys, eager": (
        eager_bert,
        {"input_ids": IDS, "attention_mask": ONE_TEXT.long()},
        {},
        FULL,
    ),
    "a source without keys": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS, "attention_mask": ONE_TEXT.long(), "labels": TARGET},
        {},
        FULL,
    ),
    "a weight that is NaN": (
        lambda: broken(transformers.BertModel(BERT), "encoder.layer.0.intermediate.dense.weight"),
        {"input_ids": IDS, "attention_mask": KEEP.long()},
        {},
        NOT_A_NUMBER,
    ),
    "spans without a mask": (
        lambda: transformers.BertForQuestionAnswering(BERT),
        {"input_ids": IDS},
        {},
        ATTENDED,
    ),
    "labels of a model without a shift method, and no mask": (
        lambda: transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**MARIAN_SIZES)),
        {"input_ids": IDS, "labels": torch.where(TARGET_KEEP, TARGET, -100)[:, :5].contiguous()},
        {},
        ATTENDED,
    ),
    "labels, and a mask inverted": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS[1:], "attention_mask": (~KEEP[1:]).long(), "labels": TARGET[1:, :4].contiguous()},
        {},
        INVERTED,
    ),
    "swapped": (
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
    "the target's mask inverted": (
        lambda: transformers.MarianMTModel(MARIAN),
        {
            "input_ids": IDS,
            "attention_mask": KEEP.long(),
            "decoder_input_ids": TARGET,
            "decoder_attention_mask": (~TARGET_KEEP).long(),
        },
        BOTH,
        INVERTED,
    ),
}  # fmt: skip
for fault, (keep_memory, rule) in MEMORY_MASKS.items():
    inputs = {"input_ids": IDS, "decoder_input_ids": TARGET, "memory_mask": keep_memory}
    PLANTED[f"memory mask {fault}"] = (TheirMemoryMask, inputs, BOTH, rule)


@pytest.mark.parametrize("name", PLANTED)
def test_reports_planted_mistake(name):
    assert_reported(*PLANTED[name])


def test_eager_model_does_not_change_later_models():
    assert eager_bert().config._attn_implementation == "eager"
    batch = {"input_ids": IDS, "attention_mask": ONE_CLOSED}
    assert [finding.rule for finding in lint(transformers.BertModel(BERT), batch)] == [FULL]
