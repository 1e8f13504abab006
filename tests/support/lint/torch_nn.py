"""Models of torch.nn modules, whose default layout has the length first."""

import torch
from torch import nn
from torch.nn import functional

from support.lint.examples import CAUSAL, PAD


class LengthFirstEncoder(nn.Module):
    """An encoder with the length first inside; batch or length first outside, or a mean over real tokens."""

    def __init__(self, *, first=True, pooled=False, mask_padding=True):
        super().__init__()
        self.first, self.pooled, self.mask_padding = first, pooled, mask_padding
        self.embedding = nn.Embedding(20, 8, padding_idx=PAD)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12), 2)

    def forward(self, src):
        x, padding = self.embedding(src), src == PAD
        turned_x, turned_padding = (x.transpose(0, 1), padding) if self.first else (x, padding.T)
        states = self.body(turned_x, src_key_padding_mask=turned_padding if self.mask_padding else None)
        if self.first:
            states = states.transpose(0, 1)
        real = (~padding)[..., None]
        return (states * real).sum(dim=1) / real.sum(dim=1) if self.pooled else states


class LengthFirstTransformer(nn.Module):
    """An encoder–decoder with the length first inside."""

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


class Pooled(nn.Module):
    """A pooled encoder: embedding by a module or a function, batch or length first."""

    def __init__(self, pool, first, embed):
        super().__init__()
        self.pool, self.first, self.embed = pool, first, embed
        self.embedding = nn.Embedding(20, 8, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        random = torch.Generator().manual_seed(0)  # with other weights, zeros may be the maximum of no column
        for parameter in self.parameters():
            parameter.data = torch.rand(parameter.shape, generator=random) - 0.5

    def forward(self, src):
        keep, ids = src != PAD, src if self.first else src.T
        x = self.embedding(ids) if self.embed == "module" else functional.embedding(ids, self.embedding.weight)
        states = self.body(x, src_key_padding_mask=~keep)
        states, real = states if self.first else states.transpose(0, 1), keep[..., None]
        match self.pool:
            case "a mean":
                return (states * real).sum(dim=1) / real.sum(dim=1)
            case "a maximum":
                return states.masked_fill(~real, -torch.inf).amax(dim=1)
            case "a divisor that counts padding":
                return (states * real).mean(dim=1)
            case "a maximum over zeros":
                return (states * real).amax(dim=1)
        raise AssertionError(self.pool)


class Layers(nn.Module):
    """Two layers, one optionally with a causal or an inverted mask."""

    def __init__(self, causal, inverted):
        super().__init__()
        self.causal, self.inverted = causal, inverted
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True) for _ in range(2))

    def forward(self, src, padding):
        for number, layer in enumerate(self.layers):
            mask = CAUSAL.isinf() if number == self.causal else None
            src = layer(src, src_mask=mask, src_key_padding_mask=~padding if number == self.inverted else padding)
        return src


class Prefixed(nn.Module):
    """A learned token before the text; pooling by this token or by the mean over it and real tokens."""

    def __init__(self, pool, mask_padding=True):
        super().__init__()
        self.pool, self.mask_padding = pool, mask_padding
        self.embedding, self.first = nn.Embedding(20, 8, padding_idx=PAD), nn.Parameter(torch.randn(8))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1)

    def forward(self, ids):
        x = torch.cat([self.first.expand(len(ids), 1, 8), self.embedding(ids)], dim=1)
        padding = functional.pad(ids == PAD, (1, 0))
        states, real = self.encoder(x, src_key_padding_mask=padding if self.mask_padding else None), ~padding[..., None]
        mean = (states * real).sum(dim=1) / real.sum(dim=1)
        return {"first": states[:, 0], "mean": mean, "none": states}[self.pool]
