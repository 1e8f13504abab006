"""Modules around torch.nn's, which have the length first where nothing else is said."""

from torch import nn

from support.linting import PAD


class Turned(nn.Module):
    """Texts before batches inside; outside as it is wanted, or a mean over the real tokens."""

    def __init__(self, *, first=True, pooled=False, masked=True):
        super().__init__()
        self.first, self.pooled, self.masked = first, pooled, masked
        self.embedding = nn.Embedding(20, 8, padding_idx=PAD)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12), 2)

    def forward(self, src):
        x, padding = self.embedding(src), src == PAD
        turned_x, turned_padding = (x.transpose(0, 1), padding) if self.first else (x, padding.T)
        states = self.body(turned_x, src_key_padding_mask=turned_padding if self.masked else None)
        if self.first:
            states = states.transpose(0, 1)
        real = (~padding)[..., None]
        return (states * real).sum(dim=1) / real.sum(dim=1) if self.pooled else states


class TurnedBoth(nn.Module):
    """The same of an encoder-decoder."""

    def __init__(self, *, causal=True):
        super().__init__()
        self.causal = causal
        self.embedding = nn.Embedding(20, 8, padding_idx=PAD)
        self.body = nn.Transformer(8, 2, 1, 2, 12)

    def forward(self, src, tgt):
        x, y = (self.embedding(ids).transpose(0, 1) for ids in (src, tgt))
        mask = nn.Transformer.generate_square_subsequent_mask(len(y)) if self.causal else None
        padding = src == PAD
        states = self.body(
            x, y, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding,
            tgt_key_padding_mask=tgt == PAD,
        )  # fmt: skip
        return states.transpose(0, 1)
