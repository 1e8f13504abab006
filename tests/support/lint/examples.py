"""Models, batches, masks and rule ids for the tests of the linter."""

import copy

import torch
import transformers
from torch import nn

from clearhead import EncoderConfig, EncoderModel, Seq2Seq, Seq2SeqConfig, lint, masks

PAD = 0
LENGTHS, TARGETS = [6, 4, 2], [3, 6, 5]
KEEP = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
TARGET_KEEP = torch.arange(6) < torch.tensor(TARGETS)[:, None]
IDS = torch.where(KEEP, torch.randint(3, 20, (3, 6)), PAD)
TARGET = torch.where(TARGET_KEEP, torch.randint(3, 20, (3, 6)), PAD)
SOURCE, BOTH = {"keep": KEEP}, {"keep": KEEP, "target_keep": TARGET_KEEP}
MASK, TARGET_MASK = masks.padding(KEEP), masks.padding(TARGET_KEEP)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
X, Y = torch.randn(3, 6, 8), torch.randn(3, 6, 8)
SIZES = {"vocab_size": 20, "d_model": 8, "ffn_hidden": 12, "num_heads": 2, "num_layers": 2}
BERT = transformers.BertConfig(
    vocab_size=20, hidden_size=8, intermediate_size=12, num_attention_heads=2, num_hidden_layers=2, pad_token_id=PAD
)
MARIAN_SIZES = {
    "vocab_size": 20,
    "d_model": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
    "max_position_embeddings": 20,
    "pad_token_id": PAD,
    "eos_token_id": 1,
    "decoder_start_token_id": PAD,
}
MARIAN = transformers.MarianConfig(**MARIAN_SIZES)
T5 = transformers.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2, pad_token_id=PAD)

INVERTED, ATTENDED, SWAPPED = (
    "padding-mask-inverted",
    "padding-attended",
    "padding-masks-swapped",
)
FUTURE, FULL, NOTHING = "future-visible", "fully-masked-row", "float-mask-ineffective"
IGNORED, LEAKS = "text-ignored", "pooled-padding"
UPSIDE_DOWN, NOT_A_NUMBER = "causal-mask-inverted", "nonfinite-weight"
EVERY = torch.ones(6, 6, dtype=torch.bool)
ONE_CLOSED = (EVERY & (torch.arange(6) != 2)[:, None]) & KEEP[:, None, None]
"""The third token may not attend to any key."""
ONE_TEXT = KEEP & (torch.arange(3) != 1)[:, None]
"""The second text has no keys."""
MEMORY_MASKS = {
    "inverted": (~KEEP, INVERTED),
    "is the target's": (TARGET_KEEP, SWAPPED),
    "hides text": (KEEP & (torch.arange(6) < 1), IGNORED),
}
"""For each mistake the padding mask of the source that the decoder receives, and the rule that must match."""


def encoder():
    return EncoderModel(EncoderConfig(**SIZES))


def torch_encoder(batch_first=True):
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def torch_transformer(batch_first=True):
    return nn.Transformer(8, 2, 2, 2, 12, batch_first=batch_first)


def attention(**changes):
    return lambda: nn.MultiheadAttention(8, 2, **({"batch_first": True} | changes))


def eager_bert():
    # a copy: it writes "eager" into the config, and later models would add 4-D bool masks as 0 and 1
    return transformers.BertModel._from_config(copy.deepcopy(BERT), attn_implementation="eager")


class MeanOfAll(nn.Module):
    """Mean over all positions, or over real tokens."""

    def __init__(self, body, mask_padding=False):
        super().__init__()
        self.body, self.config, self.mask_padding = body, body.config, mask_padding

    def forward(self, **batch):
        states = self.body(**batch)
        states = getattr(states, "last_hidden_state", states)
        if not self.mask_padding:
            return states.mean(dim=1)
        return (states * KEEP[:, :, None]).sum(dim=1) / KEEP.sum(dim=1, keepdim=True)


class MeanOfOurs(MeanOfAll):
    def forward(self, ids, mask):
        return super().forward(ids=ids, mask=mask)


class MeanOfTheirs(MeanOfAll):
    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask)


class OurMemoryMask(nn.Module):
    """An encoder–decoder with a separate memory mask."""

    def __init__(self):
        super().__init__()
        self.model = Seq2Seq(Seq2SeqConfig(**SIZES))
        self.encoder = self.model.encoder

    def forward(self, ids, target_ids, memory_mask):
        memory = self.model.encode(ids, MASK)
        return self.model.decode(target_ids, memory, TARGET_MASK, memory_mask)


class TheirMemoryMask(nn.Module):
    """The same with transformers, where the memory mask has the name of the source mask."""

    def __init__(self):
        super().__init__()
        self.model = transformers.BartModel(transformers.BartConfig(**MARIAN_SIZES))
        self.encoder = self.model.get_encoder()

    def forward(self, input_ids, decoder_input_ids, memory_mask):
        encoded = self.encoder(input_ids=input_ids, attention_mask=KEEP.long())
        return self.model(
            encoder_outputs=encoded, attention_mask=memory_mask.long(), decoder_input_ids=decoder_input_ids
        )


def right_torch(**changes):
    correct = {
        "src": X,
        "tgt": Y,
        "tgt_mask": CAUSAL,
        "src_key_padding_mask": ~KEEP,
        "tgt_key_padding_mask": ~TARGET_KEEP,
        "memory_key_padding_mask": ~KEEP,
    }
    return {name: value for name, value in (correct | changes).items() if value is not None}


def broken(model, name):
    """Return the model with one NaN weight."""
    with torch.no_grad():
        model.get_parameter(name)[0, 0] = torch.nan
    return model


def assert_reported(make_model, batch, known, rule):
    """Check that lint() reports a mistake first, and leaves the model as it was."""
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
