"""The linter: planted mistakes are found, in ours, torch.nn's and transformers' models; right ones are left alone."""

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from clearhead import Decoder, Encoder, EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, lint, lint_masks, masks

PAD = 0
LENGTHS, TARGETS = [6, 4, 2], [3, 6, 5]
KEEP = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
TARGET_KEEP = torch.arange(6) < torch.tensor(TARGETS)[:, None]
IDS = torch.where(KEEP, torch.randint(3, 20, (3, 6)), PAD)
TARGET = torch.where(TARGET_KEEP, torch.randint(3, 20, (3, 6)), PAD)
MASK, TARGET_MASK = masks.padding(KEEP), masks.padding(TARGET_KEEP)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
X, Y = torch.randn(3, 6, 8), torch.randn(3, 6, 8)
SIZES = {"vocab_size": 20, "d_model": 8, "ffn_hidden": 12, "num_heads": 2, "num_layers": 2}
BERT = transformers.BertConfig(
    vocab_size=20, hidden_size=8, intermediate_size=12, num_attention_heads=2, num_hidden_layers=2, pad_token_id=PAD
)
MARIAN = transformers.MarianConfig(
    vocab_size=20, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=12, decoder_ffn_dim=12, pad_token_id=PAD, eos_token_id=1, decoder_start_token_id=PAD,
    max_position_embeddings=20,
)  # fmt: skip
T5 = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2, pad_token_id=PAD)


class MeanOfAll(nn.Module):
    """Pools without looking at the padding."""

    def __init__(self, body, masked=False):
        super().__init__()
        self.body, self.config, self.masked = body, body.config, masked

    def forward(self, **batch):
        states = self.body(**batch)
        states = getattr(states, "last_hidden_state", states)
        if not self.masked:
            return states.mean(dim=1)
        return (states * KEEP[:, :, None]).sum(dim=1) / KEEP.sum(dim=1, keepdim=True)


class MeanOfOurs(MeanOfAll):
    def forward(self, ids, mask):
        return super().forward(ids=ids, mask=mask)


class MeanOfTheirs(MeanOfAll):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask)


def encoder():
    return EncoderModel(EncoderConfig(**SIZES))


def torch_encoder(batch_first=True):
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def torch_transformer(batch_first=True):
    return nn.Transformer(8, 2, 2, 2, 12, batch_first=batch_first)


def right_torch(**changes):
    right = {
        "src": X,
        "tgt": Y,
        "tgt_mask": CAUSAL,
        "src_key_padding_mask": ~KEEP,
        "tgt_key_padding_mask": ~TARGET_KEEP,
        "memory_key_padding_mask": ~KEEP,
    }
    return {name: value for name, value in (right | changes).items() if value is not None}


# what is planted: the model, the batch, what is known of padding, and the mistake that is to be found
KNOWN, BOTH = {"keep": KEEP}, {"keep": KEEP, "target_keep": TARGET_KEEP}
INVERTED, ATTENDED, SWAPPED = (
    "the padding mask is inverted",
    "padding is attended",
    "source and target padding are swapped",
)
FUTURE, FULL, NOTHING = "the decoder sees the future", "a row is fully masked", "a float mask masks nothing"
PLANTED = {
    "ours: inverted": (encoder, {"ids": IDS, "mask": ~KEEP[:, None, None]}, {}, INVERTED),
    "ours: no mask": (encoder, {"ids": IDS}, {}, ATTENDED),
    "ours: a causal encoder": (encoder, {"ids": IDS, "mask": MASK & masks.causal(6)}, {}, "the encoder is causal"),
    "ours: floats 0 and 1": (encoder, {"ids": IDS, "mask": KEEP[:, None, None].float()}, {}, NOTHING),
    "ours: a mask of nothing but no": (
        encoder,
        {"ids": IDS, "mask": torch.zeros(6, 6, dtype=torch.bool)},
        {},
        "nothing is attended",
    ),
    "ours: a mask that cuts words": (
        encoder,
        {"ids": IDS, "mask": masks.padding(KEEP & (torch.arange(6) != 1))},
        {},
        "text is ignored",
    ),
    "ours: pooled with padding": (lambda: MeanOfOurs(encoder()), {"ids": IDS, "mask": MASK}, {}, "padding leaks into the pooled vector"),
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
        "the causal mask is upside down",
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
    "torch.nn: inverted": (torch_encoder, {"src": X, "src_key_padding_mask": KEEP}, KNOWN, INVERTED),
    "torch.nn: inverted, all rows padded": (
        torch_encoder,
        {"src": X[1:], "src_key_padding_mask": KEEP[1:]},
        {"keep": KEEP[1:]},
        INVERTED,
    ),
    "torch.nn: no mask": (torch_encoder, {"src": X}, KNOWN, ATTENDED),
    "torch.nn: floats 0 and 1": (torch_encoder, {"src": X, "src_key_padding_mask": (~KEEP).float()}, KNOWN, NOTHING),
    "torch.nn: a causal encoder": (
        torch_encoder,
        {"src": X, "mask": CAUSAL, "src_key_padding_mask": ~KEEP},
        KNOWN,
        "the encoder is causal",
    ),
    "torch.nn: no causal mask": (torch_transformer, right_torch(tgt_mask=None), BOTH, FUTURE),
    "torch.nn: the causal mask inverted": (
        torch_transformer,
        right_torch(tgt_mask=torch.ones(6, 6, dtype=torch.bool).tril(-1), tgt_key_padding_mask=None),
        BOTH,
        "the causal mask is upside down",
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
        KNOWN,
        ATTENDED,
    ),
    "transformers: no mask": (lambda: transformers.BertModel(BERT), {"input_ids": IDS}, {}, ATTENDED),
    "transformers: inverted": (
        lambda: transformers.BertModel(BERT),
        {"input_ids": IDS[1:], "attention_mask": (~KEEP[1:]).long()},
        {},
        INVERTED,
    ),
    "transformers: pooled with padding": (
        lambda: MeanOfTheirs(transformers.BertModel(BERT)),
        {"input_ids": IDS, "attention_mask": KEEP.long()},
        {},
        "padding leaks into the pooled vector",
    ),
    "transformers: a translator without a mask": (
        lambda: transformers.MarianMTModel(MARIAN),
        {"input_ids": IDS, "decoder_input_ids": TARGET},
        {},
        ATTENDED,
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


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name):
    make, batch, known, mistake = PLANTED[name]
    torch.manual_seed(0)
    model = make().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = lint(model, batch, **known)
    assert [finding.mistake for finding in found][:1] == [mistake], list(map(str, found))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found[0].where
    assert found[0].why
    assert found[0].mend


RIGHT = ["ours", "our seq2seq", "our decoder", "torch.nn", "torch.nn transformer", "bert", "marian", "t5", "pooled"]


@pytest.mark.parametrize("kind", RIGHT)
def test_nothing_is_said_where_all_is_right(kind):
    @given(st.integers(0, 2**16), st.integers(1, 4), st.integers(2, 9), st.integers(2, 9))
    @settings(max_examples=6)
    def check(seed, rows, longest, longest_target):
        torch.manual_seed(seed)
        keep, target_keep = (
            torch.arange(length) < torch.randint(1, length + 1, (rows, 1)) for length in (longest, longest_target)
        )
        ids, target = (torch.where(kept, torch.randint(3, 20, kept.shape), PAD) for kept in (keep, target_keep))
        x, y = torch.randn(rows, longest, 8), torch.randn(rows, longest_target, 8)
        causal = nn.Transformer.generate_square_subsequent_mask(longest_target)
        theirs = {"input_ids": ids, "attention_mask": keep.long()}
        both = theirs | {"decoder_input_ids": target, "decoder_attention_mask": target_keep.long()}
        model, batch, known = {
            "ours": lambda: (encoder(), {"ids": ids, "mask": masks.padding(keep)}, {}),
            "our seq2seq": lambda: (
                Seq2Seq(Seq2SeqConfig(**SIZES)),
                {"ids": ids, "target_ids": target, "mask": masks.padding(keep)},
                {},
            ),
            "our decoder": lambda: (
                Decoder(8, 12, 2, 0.1, 2),
                {"x": y, "memory": x, "mask": masks.causal(longest_target), "memory_mask": masks.padding(keep)},
                {"keep": keep, "target_keep": target_keep},
            ),
            "torch.nn": lambda: (torch_encoder(), {"src": x, "src_key_padding_mask": ~keep}, {"keep": keep}),
            "torch.nn transformer": lambda: (
                torch_transformer(),
                {"src": x, "tgt": y, "tgt_mask": causal, "src_key_padding_mask": ~keep, "memory_key_padding_mask": ~keep},
                {"keep": keep, "target_keep": target_keep},
            ),
            "bert": lambda: (transformers.BertModel(BERT), theirs, {}),
            "marian": lambda: (transformers.MarianMTModel(MARIAN), both, {}),
            "t5": lambda: (transformers.T5ForConditionalGeneration(T5), both, {}),
            "pooled": lambda: (transformers.BertForSequenceClassification(BERT), theirs, {}),
        }[kind]()  # fmt: skip
        assert lint(model, batch, **known) == []

    check()


def test_a_batch_without_a_source_is_said():
    with pytest.raises(ValueError, match="no source.*got words"):
        lint(encoder(), {"words": IDS})


@pytest.mark.parametrize(
    ("mask", "options", "mistake"),
    [
        (~KEEP[:, None, None], {}, INVERTED),
        (None, {}, ATTENDED),
        (masks.padding(TARGET_KEEP), {"other": TARGET_KEEP}, SWAPPED),
        (masks.causal(6) & MASK, {}, "the encoder is causal"),
        (MASK, {"causal": True}, FUTURE),
        (torch.ones(6, 6, dtype=torch.bool).triu(), {"causal": True}, "the causal mask is upside down"),
        (KEEP[:, None, None].float(), {}, NOTHING),
        (MASK & masks.padding(torch.tensor([[False] + [True] * 5])), {}, "text is ignored"),
        (torch.zeros(6, 6, dtype=torch.bool), {}, "nothing is attended"),
        (masks.padding(~KEEP), {"queries": TARGET_KEEP}, INVERTED),
        (MASK & masks.Mask(length=6, scores=~torch.eye(6, dtype=torch.bool)[2][:, None].expand(6, 6)), {}, FULL),
    ],
)
def test_a_mistake_in_a_mask_is_found_without_a_model(mask, options, mistake):
    found = lint_masks(mask, KEEP, **options)
    assert [finding.mistake for finding in found] == [mistake]


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (MASK, {}),
        (KEEP[:, None, None], {}),
        (torch.where(KEEP, 0.0, -torch.inf)[:, None, None], {}),
        (torch.where(KEEP, 0.0, -1e9)[:, None, None], {}),
        (MASK & masks.causal(6), {"causal": True}),
        (MASK & masks.window(6, 1), {}),
        (MASK, {"queries": TARGET_KEEP, "other": TARGET_KEEP}),
        (masks.from_torch_nn(CAUSAL, ~KEEP), {"causal": True}),
        (masks.from_transformers(KEEP.long()), {}),
    ],
)
def test_nothing_is_said_of_a_right_mask(mask, options):
    assert lint_masks(mask, KEEP, **options) == []


def test_whole_numbers_are_refused():
    with pytest.raises(ValueError, match="from_transformers"):
        lint_masks(KEEP.long()[:, None, None], KEEP)


def test_an_encoders_stack_is_looked_at_too():
    stack, x = Encoder(8, 12, 2, 0.0, 1), torch.randn(3, 6, 8)
    assert lint(stack, {"x": x, "mask": MASK}, keep=KEEP) == []
    assert [finding.mistake for finding in lint(stack, {"x": x}, keep=KEEP)] == [ATTENDED]
