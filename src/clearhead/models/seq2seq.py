"""The encoder–decoder: from source ids to the logits of the next target token."""

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.cache import DecoderCache
from clearhead.layers.embedding import (
    Embedding,
    LearnedPositionalEncoding,
    OutputProjection,
    PositionalEncoding,
    SinusoidLayout,
    TokenEmbedding,
)
from clearhead.layers.norm import LayerNorm
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.encoder import check_ids, init_weights
from clearhead.stacks.decoder import Decoder
from clearhead.stacks.encoder import Encoder

_LAYOUTS: dict[str, SinusoidLayout] = {
    "sinusoidal": "interleaved",
    "concatenated": "concatenated",
    "fairseq": "fairseq",
}


class Seq2Seq(nn.Module):
    """The Transformer of Figure 1: an encoder over the source, and a decoder with attention to its output.

    Equation: P(t_i | t_<i, s) = softmax(logits_i), logits = Decoder(Embedding(t), Encoder(Embedding(s))) W_Eᵀ + b
    Source: Figure 1 and Section 3 of "Attention Is All You Need"

    Args:
        config: sizes and options of the model.

    `encode(ids, mask)` returns the memory (B, M, D), and `decode(target_ids, memory)` the logits (B, L, V) under a
    causal mask. `forward(ids, target_ids)` does both for all positions at once (teacher forcing); `hidden` stops
    before the logits. Masks are padding masks, as in `EncoderModel`.

    Raises:
        ValueError: in `forward`, `hidden`, `encode` and `decode`: ids outside the vocabulary, an input longer than the
            positions, a wrong mask.

    >>> import torch; from clearhead import Seq2Seq, Seq2SeqConfig
    >>> Seq2Seq(Seq2SeqConfig(vocab_size=100))(torch.randint(100, (2, 9)), torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 100])
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = _embedding(config, TokenEmbedding(config.vocab_size, config.d_model))
        self.encoder = Encoder(
            config.d_model,
            config.ffn_hidden,
            config.num_heads,
            config.drop_prob,
            config.num_layers,
            norm_order=config.norm_order,
            options=config.layer_options,
            layer_drop=config.layer_drop,
            relative_buckets=config.relative_buckets,
            relative_max_distance=config.relative_max_distance,
        )
        target_size = config.target_vocab_size or config.vocab_size
        tokens = self.source_embedding.tokens
        if not config.share_embeddings:
            tokens = TokenEmbedding(target_size, config.d_model)
        self.target_embedding = _embedding(config, tokens)
        self.decoder = Decoder(
            config.d_model,
            config.decoder_ffn_hidden or config.ffn_hidden,
            config.decoder_num_heads or config.num_heads,
            config.drop_prob,
            config.decoder_num_layers or config.num_layers,
            norm_order=config.norm_order,
            options=config.layer_options,
            layer_drop=config.decoder_layer_drop,
            relative_buckets=config.relative_buckets,
            relative_max_distance=config.relative_max_distance,
        )
        self.output = OutputProjection(
            tokens if config.tie_output else TokenEmbedding(target_size, config.d_model),
            bias=config.output_bias,
            scale=config.output_scale,
        )
        init_weights(self, config.d_model, config.initializer_range)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.source_embedding.tokens.weight.device

    def encode(self, ids: Int[Tensor, "B M"], mask: MaskLike = None) -> Float[Tensor, "B M D"]:
        """Return the memory: the encoder's hidden states of the source.

        Args:
            ids: source token ids.
            mask: padding mask, or `masks.packed`.
        """
        checked = self._check(ids, mask, self.config.num_heads, 0)
        positions = None if checked is None else checked.positions()
        x: Tensor = self.source_embedding(ids, None if positions is None else positions.to(ids.device))
        hidden: Tensor = self.encoder(x.to(_dtype(self.encoder)), checked)
        return hidden

    def decode(
        self,
        target_ids: Int[Tensor, "N L"],
        memory: Float[Tensor, "B M D"],
        mask: MaskLike = None,
        memory_mask: MaskLike = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "N L V"]:
        """Return the logits of the token after each target token, under a causal mask.

        Args:
            target_ids: target token ids, from the start token on; with a cache, only the new ones.
            memory: output of `encode`; rows of the target may share a row of it, as in `CrossAttention`.
            mask: padding mask of all target tokens, those in the cache included.
            memory_mask: padding mask of the source.
            cache: a `DecoderCache`; this call appends to it.
        """
        logits: Tensor = self.output(self._decode_hidden(target_ids, memory, mask, memory_mask, cache))
        return logits

    def hidden(
        self,
        ids: Int[Tensor, "B M"],
        target_ids: Int[Tensor, "B L"],
        mask: MaskLike = None,
        target_mask: MaskLike = None,
    ) -> Float[Tensor, "B L D"]:
        """Return the decoder's hidden states at all positions, the input of the output projection.

        A loss over a large vocabulary needs no logits: `model.output.loss(model.hidden(ids, target_ids), next_ids)`.

        Args:
            ids, target_ids, mask, target_mask: as in `forward`.
        """
        memory_mask = self._check(ids, mask, self.config.num_heads, 0)
        return self._decode_hidden(target_ids, self.encode(ids, memory_mask), target_mask, memory_mask)

    def forward(
        self,
        ids: Int[Tensor, "B M"],
        target_ids: Int[Tensor, "B L"],
        mask: MaskLike = None,
        target_mask: MaskLike = None,
    ) -> Float[Tensor, "B L V"]:
        logits: Tensor = self.output(self.hidden(ids, target_ids, mask, target_mask))
        return logits

    def cache(self) -> DecoderCache:
        """Return an empty cache for `decode`."""
        return DecoderCache(len(self.decoder.layers))

    def _decode_hidden(
        self,
        target_ids: Tensor,
        memory: Tensor,
        mask: MaskLike,
        memory_mask: MaskLike,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        past = 0 if cache is None else cache.length
        length = target_ids.shape[-1]
        checked = self._check(target_ids, mask, self.decoder.num_heads, past)
        positions = None if checked is None else checked.positions()
        if positions is None and past:
            positions = torch.arange(past, past + length, device=target_ids.device).expand(target_ids.shape)
        elif positions is not None:
            positions = positions[:, past:]
        x: Tensor = self.target_embedding(target_ids, None if positions is None else positions.to(target_ids.device))
        causal = masks.causal(past + length)
        joined = causal if checked is None else checked & causal
        hidden: Tensor = self.decoder(x.to(_dtype(self.decoder)), memory, joined, memory_mask, cache)
        return hidden

    def _check(self, ids: Tensor, mask: MaskLike, heads: int, past: int) -> masks.Mask | None:
        """Check ids and mask, which is over the tokens in the cache, too; return the mask."""
        check_ids(ids)
        batch, length = ids.shape
        keys = past + length
        longest = max(mask.lengths) if isinstance(mask, masks.Mask) and mask.lengths else keys
        if self.config.max_len is not None and longest > self.config.max_len:
            raise ValueError(f"the input is {longest} tokens long; this model takes at most {self.config.max_len}")
        return masks.as_mask(mask, batch=batch, heads=heads, queries=length, keys=keys)


def _dtype(stack: nn.Module) -> torch.dtype:
    """Return the dtype of a stack, which may be bfloat16 while the embedding is float32."""
    return cast(Tensor, next(stack.parameters())).dtype


def _embedding(config: Seq2SeqConfig, tokens: TokenEmbedding) -> Embedding:
    positions: PositionalEncoding | LearnedPositionalEncoding | None = None
    if config.positions == "learned":
        assert config.max_len is not None
        positions = LearnedPositionalEncoding(config.d_model, config.max_len, offset=config.position_offset)
    elif config.positions != "none":
        assert config.max_len is not None
        positions = PositionalEncoding(
            config.d_model, config.max_len, layout=_LAYOUTS[config.positions], offset=config.position_offset
        )
    return Embedding(
        tokens,
        positions=positions,
        norm=LayerNorm(config.d_model, config.eps, bias=config.bias) if config.embedding_norm else None,
        scale=config.embedding_scale,
        drop_prob=config.drop_prob if config.embedding_drop_prob is None else config.embedding_drop_prob,
    )
