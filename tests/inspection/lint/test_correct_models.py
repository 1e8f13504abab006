"""lint() reports nothing for correct calls, in any form of their masks."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lint.examples import (
    BERT,
    MARIAN,
    PAD,
    SIZES,
    T5,
    attention,
    eager_bert,
    encoder,
    torch_encoder,
    torch_transformer,
)
from support.lint.torch_nn import LengthFirstEncoder, LengthFirstTransformer, Pooled
from torch import nn

from clearhead import Decoder, Seq2Seq, Seq2SeqConfig, lint, masks

CORRECT = [
    *("ours", "our seq2seq", "our decoder", "torch.nn", "torch.nn transformer", "bert", "marian", "t5", "pooled"),
    *(
        "bert eager",
        "xlnet",
        "longformer",
        "mobilebert",
        "spans",
        "labels",
        "one attention",
        "one causal attention",
        "one cross-attention",
    ),
    *("a mean", "a maximum", "a maximum, the length first"),
    *("around torch.nn", "around torch.nn, the length first", "around torch.nn, pooled", "around torch.nn transformer"),
]
XLNET = transformers.XLNetConfig(vocab_size=20, d_model=8, n_layer=2, n_head=2, d_inner=12, pad_token_id=PAD)
# its scores have heads in place of queries: with equal numbers of heads and tokens they would be confused
LONGFORMER = transformers.LongformerConfig(
    vocab_size=20, hidden_size=20, intermediate_size=12, num_attention_heads=10, num_hidden_layers=2,
    attention_window=4, max_position_embeddings=40, pad_token_id=PAD,
)  # fmt: skip
MOBILEBERT = transformers.MobileBertConfig(
    vocab_size=20, hidden_size=8, embedding_size=8, intra_bottleneck_size=8, intermediate_size=12, pad_token_id=PAD,
    num_attention_heads=2, num_hidden_layers=2,
)  # fmt: skip
FLOATS = [None, -torch.inf, -1e4, torch.finfo(torch.float32).min]


def torch_mask(keep, fill):
    """Return torch.nn's padding mask as bools or floats."""
    return ~keep if fill is None else torch.where(keep, 0.0, fill)


def dense_mask(keep, fill):
    """Return the mask (B, 1, 1, M) with True = may attend, or as floats."""
    return keep[:, None, None] if fill is None else torch_mask(keep, fill)[:, None, None]


def correct_call(kind, keep, target_keep, fill):
    """Return a model, a batch and arguments about padding without a mistake."""
    ids, target = (torch.where(kept, torch.randint(3, 20, kept.shape), PAD) for kept in (keep, target_keep))
    start = target_keep & (target_keep.cumsum(dim=1) == 1)
    target = torch.where(start, PAD, target)  # the start token of these models
    for calls in (correct_ours, correct_torch, correct_around_torch, correct_transformers):
        if call := calls(kind, keep, target_keep, ids, target, fill):
            return call
    raise AssertionError(kind)


def vectors(keep, target_keep):
    """Return random vectors for each position of the source and the target."""
    return torch.randn(*keep.shape, 8), torch.randn(*target_keep.shape, 8)


def correct_ours(kind, keep, target_keep, ids, target, fill):
    """Return a correct call of a model of this library."""
    match kind:
        case "ours":
            return encoder(), {"ids": ids, "mask": dense_mask(keep, fill)}, {}
        case "our seq2seq":
            both = {"mask": masks.padding(keep), "target_mask": masks.padding(target_keep)}
            return Seq2Seq(Seq2SeqConfig(**SIZES)), {"ids": ids, "target_ids": target} | both, {}
        case "our decoder":
            x, y = vectors(keep, target_keep)
            batch = {"x": y, "memory": x, "mask": masks.causal(y.shape[1]), "memory_mask": dense_mask(keep, fill)}
            return Decoder(8, 12, 2, 0.1, 2), batch, {"keep": keep, "target_keep": torch.ones_like(target_keep)}


def correct_torch(kind, keep, target_keep, ids, target, fill):
    """Return a correct call of a module of torch.nn."""
    x, y = vectors(keep, target_keep)
    padding = torch_mask(keep, fill)
    known = {"keep": keep, "target_keep": target_keep}
    causal = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
    match kind:
        case "torch.nn":
            return torch_encoder(), {"src": x, "src_key_padding_mask": padding}, {"keep": keep}
        case "torch.nn transformer":
            batch = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
            batch |= {"tgt_key_padding_mask": torch_mask(target_keep, fill)}
            return torch_transformer(), {"src": x, "tgt": y, "tgt_mask": causal, **batch}, known
        case "one attention":
            return attention()(), {"query": x, "key": x, "value": x, "key_padding_mask": padding}, {"keep": keep}
        case "one causal attention":
            return attention()(), {"query": y, "key": y, "value": y, "attn_mask": causal, "need_weights": False}, {}
        case "one cross-attention":
            return attention()(), {"query": y, "key": x, "value": x, "key_padding_mask": padding}, known


def correct_around_torch(kind, keep, target_keep, ids, target, fill):
    """Return a correct call of a model of torch.nn modules that embeds ids and derives its masks from them."""
    match kind:
        case "around torch.nn":
            return LengthFirstEncoder(), {"src": ids}, {}
        case "a mean" | "a maximum" | "a maximum, the length first":
            pool, first = kind.split(",")[0], "length" not in kind
            return Pooled(pool, first, "module" if first else "function"), {"src": ids}, {}
        case "around torch.nn, the length first":
            return LengthFirstEncoder(first=False), {"src": ids.T.contiguous()}, {}
        case "around torch.nn, pooled":
            return LengthFirstEncoder(pooled=True), {"src": ids}, {}
        case "around torch.nn transformer":
            return LengthFirstTransformer(), {"src": ids, "tgt": torch.where(target == PAD, 2, target)}, {"keep": keep}


def correct_transformers(kind, keep, target_keep, ids, target, fill):
    """Return a correct call of a model of transformers."""
    rows, longest = keep.shape
    theirs = {"input_ids": ids, "attention_mask": keep.long()}
    both = theirs | {"decoder_input_ids": target, "decoder_attention_mask": target_keep.long()}
    match kind:
        case "bert":
            dense = {} if fill is None else {"attention_mask": dense_mask(keep, fill).expand(rows, 1, longest, longest)}
            return transformers.BertModel(BERT), theirs | dense, {}
        case "bert eager":
            return eager_bert(), theirs, {}
        case "xlnet":  # embeds ids with the length first
            return transformers.XLNetModel(XLNET), theirs, {}
        case "longformer":  # pads ids to full windows
            return transformers.LongformerModel(LONGFORMER), theirs, {}
        case "mobilebert":  # concatenates each embedding with the next, and the last with zeros
            return transformers.MobileBertModel(MOBILEBERT), theirs, {}
        case "spans":
            return transformers.BertForQuestionAnswering(BERT), theirs, {}
        case "marian":
            return transformers.MarianMTModel(MARIAN), both, {}
        case "labels":
            kept = target_keep.sort(dim=1, descending=True).values
            labels = torch.where(kept, torch.randint(3, 20, kept.shape), -100)
            return transformers.MarianMTModel(MARIAN), theirs | {"labels": labels}, {}
        case "t5":
            return transformers.T5ForConditionalGeneration(T5), both, {}
        case "pooled":
            return transformers.BertForSequenceClassification(BERT), theirs, {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CORRECT)
def test_reports_nothing_for_correct_call(kind):
    @given(
        st.integers(0, 2**16),
        st.integers(1, 4),
        st.integers(2, 9),
        st.integers(2, 9),
        st.booleans(),
        st.sampled_from(FLOATS),
    )
    @settings(max_examples=8)
    def check(seed, rows, longest, longest_target, left, fill):
        torch.manual_seed(seed)
        keep, target_keep = (
            torch.arange(length) < torch.randint(1, length + 1, (rows, 1)) for length in (longest, longest_target)
        )
        # BERT's classifier uses the first token; MobileBERT's first token includes the padding before it
        if left and kind not in ("pooled", "mobilebert"):
            keep, target_keep = keep.flip(1), target_keep.flip(1)
        model, batch, known = correct_call(kind, keep, target_keep, fill)
        assert lint(model, batch, **known) == []

    check()


@pytest.mark.parametrize("kind", ["Model", "ForQuestionAnswering", "ForSequenceClassification"])
def test_target_derived_from_source_is_not_a_causal_encoder(kind):
    keep, ends = torch.arange(6) < torch.tensor([[6], [4]]), torch.arange(6) == torch.tensor([[5], [3]])
    sizes = {
        f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")
    }
    config = transformers.BartConfig(vocab_size=20, d_model=8, max_position_embeddings=16, **sizes)
    ids = torch.where(keep, torch.randint(3, 20, (2, 6)), config.pad_token_id).masked_fill(ends, config.eos_token_id)
    model = getattr(transformers, f"Bart{kind}")(config)
    assert lint(model, {"input_ids": ids, "attention_mask": keep.long()}) == []
