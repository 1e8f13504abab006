"""The encoder model: an encoder with its embedding, from token ids to hidden states."""

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.equations.positions import positions_after_padding
from clearhead.layers.attention import CrossAttention, MultiHeadAttention, RelativePositionBias
from clearhead.layers.disentangled_attention import DistanceEmbedding
from clearhead.layers.embedding import (
    Embedding,
    LearnedPositionalEncoding,
    PositionalEncoding,
    TokenEmbedding,
    TokenTypeEmbedding,
)
from clearhead.models.config import EncoderConfig
from clearhead.stacks.encoder import Encoder


class Pooler(nn.Module):
    """The pooler of BERT: a tanh layer over the first token.

    Equation: p = tanh(h_1 W_p + b_p)
    Source: Devlin et al. 2018, "BERT", in the authors' code
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B D"]:
        return torch.tanh(self.dense(hidden[:, 0]))


class EncoderModel(nn.Module):
    """An encoder over token ids.

    Equation: H = Encoder(Embedding(ids), M)
    Source: Figure 1 (left) of "Attention Is All You Need"

    Args:
        config: sizes and options of the model.

    `forward(ids, mask=None, token_types=None)` returns the hidden states (B, L, D) of the last layer. With a padding
    mask, positions count from the first real token, so that left padding does not change the result. Padding masks
    are `masks.padding(keep)` and (B, 1, 1, L) tensors of bools or of 0 and −∞; other tensors do not affect positions.
    With `masks.packed(lengths)` a row holds several sequences, each with its own positions.

    Raises:
        ValueError: in `forward`, ids outside the vocabulary, an input longer than the positions, a wrong mask.

    >>> import torch; from clearhead import EncoderConfig, EncoderModel
    >>> EncoderModel(EncoderConfig(vocab_size=100, num_layers=2))(torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 512])
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = _embedding(config)
        self.encoder = Encoder(
            config.d_model,
            config.ffn_hidden,
            config.num_heads,
            config.drop_prob,
            config.num_layers,
            norm_order=config.norm_order,
            options=config.layer_options,
            rotary_theta=config.rotary_theta if config.positions == "rotary" else None,
            rotary_factor=config.rotary_factor,
            layer_drop=config.layer_drop,
            windows=config.windows or None,
            local_rotary_theta=config.local_rotary_theta if config.positions == "rotary" else None,
            first_norm=config.first_norm,
            relative_buckets=config.relative_buckets,
            linear_bias=config.positions == "alibi",
            layer_order=config.layer_order,
            distance_options=config.distance_options,
            convolution=config.convolution_options,
        )
        self.pooler = Pooler(config.d_model) if config.pooler else None
        init_weights(self, config.embedding_width, config.initializer_range)

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        mask: MaskLike = None,
        token_types: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        check_ids(ids)
        batch, length = ids.shape
        longest = max(mask.lengths) if isinstance(mask, masks.Mask) and mask.lengths else length
        if longest > self.config.max_len:
            raise ValueError(f"the input is {longest} tokens long; this model takes at most {self.config.max_len}")
        mask = masks.as_mask(mask, batch=batch, heads=self.config.num_heads, queries=length, keys=length)
        positions = self._positions(ids, mask)
        x: Tensor = self.embedding(ids, positions, token_types)
        # the encoder may be in bfloat16 while the embedding is in float32
        hidden: Tensor = self.encoder(x.to(cast(Tensor, next(self.encoder.parameters())).dtype), mask)
        return hidden

    def _positions(self, ids: Tensor, mask: masks.Mask | None) -> Tensor | None:
        if self.config.positions_after_padding:
            parts = (ids,) if mask is None or mask.lengths is None else torch.split(ids, list(mask.lengths), dim=1)
            return torch.cat([positions_after_padding(part, self.config.pad_id) for part in parts], dim=1)
        positions = None if mask is None else mask.positions()
        return None if positions is None else positions.to(ids.device)


def check_ids(ids: object) -> None:
    """Raise a ValueError unless the ids are a tensor of integers (batch, length)."""
    if not isinstance(ids, Tensor):
        raise ValueError(
            f"Expected a tensor of ids (batch, length), got a {type(ids).__name__}. Use torch.tensor(ids)."
        )
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"Expected integer ids of shape (batch, length), got {ids.dtype} of {tuple(ids.shape)}.")


def init_weights(model: nn.Module, embedding_width: int, std: float | None) -> None:
    """Initialize all weights of a model: from a normal distribution (BERT), or by Xavier where std is None.

    Attention with its own scale gets smaller query weights in return, as in T5.

    Args:
        model: the model, changed in place.
        embedding_width: width E; embeddings get the standard deviation 1 / √E where std is None.
        std: standard deviation.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            if std is None:
                nn.init.xavier_uniform_(module.weight)
            else:
                nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(
            module,
            TokenEmbedding | LearnedPositionalEncoding | TokenTypeEmbedding | RelativePositionBias | DistanceEmbedding,
        ):
            nn.init.normal_(module.weight, std=embedding_width**-0.5 if std is None else std)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention | CrossAttention) and module.scale is not None:
            inner = module.num_heads * module.head_dim
            factor = module.head_dim**-0.5 / module.scale
            queries = module.qkv.weight[:inner] if isinstance(module, MultiHeadAttention) else module.q.weight
            with torch.no_grad():
                queries.mul_(factor)


def _embedding(config: EncoderConfig) -> Embedding:
    width = config.embedding_width
    positions: PositionalEncoding | LearnedPositionalEncoding | None = None
    if config.positions == "sinusoidal":
        positions = PositionalEncoding(width, config.max_len)
    elif config.positions == "learned":
        extra = config.pad_id + 1 if config.positions_after_padding else 0
        positions = LearnedPositionalEncoding(width, config.max_len + extra)
    return Embedding(
        TokenEmbedding(config.vocab_size, width),
        positions=positions,
        types=TokenTypeEmbedding(config.num_token_types, width) if config.num_token_types else None,
        norm=config.layer_options.build_norm(width) if config.embedding_norm else None,
        drop_prob=config.drop_prob if config.embedding_drop_prob is None else config.embedding_drop_prob,
        projection=nn.Linear(width, config.d_model) if width != config.d_model or config.embedding_projection else None,
    )
