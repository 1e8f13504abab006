"""Embeddings: from token ids to the input of the first layer, and from the last layer to logits."""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from clearhead.equations import positions as equations
from clearhead.equations.embedding import scale_embeddings
from clearhead.kernels.linear_cross_entropy import linear_cross_entropy
from clearhead.layers.norm import LayerNorm, RMSNorm
from clearhead.layers.sampled_softmax import sample_vocabulary
from clearhead.memory import check_memory

SinusoidLayout = Literal["interleaved", "concatenated", "fairseq"]

_BYTES_PER_ELEMENT = 24
"""Bytes of memory for each element of a table of sinusoids during its computation in float64."""


class TokenEmbedding(nn.Module):
    """Token embedding: one vector for each token of the vocabulary.

    Equation: X = onehot(ids) W_E
    Source: Section 3.4 of "Attention Is All You Need"

    Args:
        vocab_size: number of tokens; ids run from 0 to vocab_size − 1.
        d_model: width D of a vector.

    Raises:
        ValueError: in `forward`, an id outside the vocabulary (checked on the CPU).

    >>> import torch; from clearhead import TokenEmbedding
    >>> TokenEmbedding(6, 8)(torch.arange(6)).shape
    torch.Size([6, 8])
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight)

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch D"]:
        check_ids(ids, self.weight.shape[0], "token ids")
        return functional.embedding(ids, self.weight)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class PositionalEncoding(nn.Module):
    """Sinusoidal positions, added to the embeddings; a buffer that is neither trained nor saved.

    Equation: PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j+1) = cos(i / 10000^(2j/d))
    Source: Section 3.5 of "Attention Is All You Need"

    Args:
        d_model: width D; an odd one ends with a sine.
        max_len: longest input, in tokens.
        layout: "interleaved" (the paper's), "concatenated" (Marian) or "fairseq" (M2M100); the latter two are
            `equations.positions.concatenated_sinusoids`.
        offset: number of the first position.

    Raises:
        ValueError: a table that does not fit into memory; in `forward`, an input longer than max_len.

    >>> import torch; from clearhead import PositionalEncoding
    >>> PositionalEncoding(4)(torch.zeros(1, 1, 4))
    tensor([[[0., 1., 0., 1.]]])
    """

    pe: Tensor

    def __init__(
        self, d_model: int, max_len: int = 5000, *, layout: SinusoidLayout = "interleaved", offset: int = 0
    ) -> None:
        super().__init__()
        self.layout = layout
        device = torch.get_default_device()
        if device.type == "meta":
            pe = torch.empty(max_len, d_model)
        else:
            check_memory(
                _BYTES_PER_ELEMENT * (max_len + offset) * d_model,
                f"a table of {max_len} positions of width {d_model}",
                "Use a smaller max_len (max_position_embeddings in config.json).",
            )
            pe = _sinusoids(layout, max_len + offset, d_model)[offset:].to(device)
        self.register_buffer("pe", pe, persistent=False)

    def forward(
        self, x: Float[Tensor, "*batch L D"], positions: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*batch L D"]:
        return equations.add_positions(x, _rows(self.pe, x, positions))


class LearnedPositionalEncoding(nn.Module):
    """Learned positions: one trained vector for each position, added to the embeddings.

    Equation: X′ = X + PE, PE a trained matrix
    Source: Section 3.5 of "Attention Is All You Need" (its variant); Devlin et al. 2018, "BERT"

    Args:
        d_model, max_len: as in `PositionalEncoding`.
        offset: number of unused rows before the first position (two in BART).

    >>> import torch
    >>> from clearhead import LearnedPositionalEncoding
    >>> LearnedPositionalEncoding(8, 512)(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, d_model: int, max_len: int, *, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(max_len + offset, d_model))
        nn.init.normal_(self.weight)

    def forward(
        self, x: Float[Tensor, "*batch L D"], positions: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*batch L D"]:
        return equations.add_positions(x, _rows(self.weight[self.offset :], x, positions))


class TokenTypeEmbedding(nn.Module):
    """Token type embedding: a vector for each segment, added to the embeddings; type 0 by default.

    Equation: X′ = X + onehot(types) W_T
    Source: Devlin et al. 2018, "BERT", Section 3
    """

    def __init__(self, num_types: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_types, d_model))
        nn.init.normal_(self.weight)

    def forward(self, x: Float[Tensor, "B L D"], types: Int[Tensor, "B L"] | None = None) -> Float[Tensor, "B L D"]:
        if types is None:
            return x + self.weight[0]
        check_ids(types, self.weight.shape[0], "token types")
        return x + functional.embedding(types, self.weight)


class Embedding(nn.Module):
    """The sum of token, position and type embeddings, with optional norm, dropout and projection.

    Equation: drop(LN(X + PE + T)) W_P + b_P
    Source: Sections 3.4, 3.5 and 5.4 of "Attention Is All You Need", whose X is X √d_model; the norm and T are BERT's,
        W_P and b_P are ALBERT's

    Args:
        tokens: the token embedding.
        positions: the position embedding; None for positions inside attention, such as rotary ones.
        types: the token type embedding, or None.
        norm: the norm after the sum, or None.
        scale: whether token embeddings are multiplied by √d_model.
        drop_prob: dropout of the sum.
        projection: the linear layer from the width of the sum to d_model, or None.
    """

    def __init__(
        self,
        tokens: TokenEmbedding,
        *,
        positions: PositionalEncoding | LearnedPositionalEncoding | None = None,
        types: TokenTypeEmbedding | None = None,
        norm: LayerNorm | RMSNorm | None = None,
        scale: bool = False,
        drop_prob: float = 0.0,
        projection: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = scale
        self.positions = positions
        self.types = types
        self.norm = norm
        self.dropout = nn.Dropout(drop_prob)
        self.projection = projection

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        positions: Int[Tensor, "B L"] | None = None,
        types: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        x: Tensor = self.tokens(ids)
        if self.scale:
            x = scale_embeddings(x)
        if self.types is not None:
            x = self.types(x, types)
        elif types is not None:
            raise ValueError("token types were given, but this model has no token types")
        if self.positions is not None:
            x = self.positions(x, positions)
        if self.norm is not None:
            x = self.norm(x)
        x = self.dropout(x)
        return x if self.projection is None else self.projection(x)


class OutputProjection(nn.Module):
    """The output projection: from hidden states to a logit for each token of the vocabulary.

    Equation: logits = H W_Eᵀ + b
    Source: Section 3.4 of "Attention Is All You Need"

    Args:
        tokens: the embedding whose matrix is transposed: the model's token embedding, or a separate one.
        bias: whether b exists; it is initialized to zeros.
        scale: whether H is divided by √d_model first (first T5).
    """

    def __init__(self, tokens: TokenEmbedding, *, bias: bool = False, scale: bool = False) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = scale
        self.bias = nn.Parameter(torch.zeros(tokens.weight.shape[0])) if bias else None

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        weight = self.tokens.weight
        return functional.linear(self.scale_hidden(h).to(weight.dtype), weight, self.bias)

    def scale_hidden(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Return the hidden states as the input of `tokens.weight`, for a chunked loss."""
        return h * self.tokens.weight.shape[1] ** -0.5 if self.scale else h

    def loss(
        self,
        h: Float[Tensor, "*batch D"],
        targets: Int[Tensor, "*batch"],
        *,
        smoothing: float = 0.0,
        ignore_index: int = -100,
    ) -> Float[Tensor, ""]:
        """Return the cross-entropy, summed over all targets but ignore_index, without storing all logits.

        Args:
            h: hidden states.
            targets: the correct next token at each position, or ignore_index.
            smoothing, ignore_index: as in `equations.losses.cross_entropy`.

        Raises:
            ValueError: a target outside the vocabulary (checked on the CPU), or a smoothing out of range.
        """
        return linear_cross_entropy(
            self.scale_hidden(h).flatten(0, -2),
            self.tokens.weight,
            targets.flatten(),
            self.bias,
            smoothing=smoothing,
            ignore_index=ignore_index,
        )

    def sample(
        self, targets_N: Int[Tensor, " N"], num_sampled: int
    ) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"], Int[Tensor, " N"]]:
        """Return rows of the matrix, their bias and the targets' positions among them, for a loss by sampled softmax.

        Args:
            targets_N, num_sampled: as in `layers.sampled_softmax.sample_vocabulary`.
        """
        sampled = sample_vocabulary(targets_N, len(self.tokens.weight), num_sampled)
        weight_KD, bias_K = self.rows(sampled.ids_K)
        return weight_KD, sampled.bias_K if bias_K is None else sampled.bias_K + bias_K, sampled.targets_N

    def rows(self, ids_K: Int[Tensor, " K"]) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"] | None]:
        """Return the rows of the matrix and the bias of these tokens."""
        bias_K = None if self.bias is None else self.bias.index_select(0, ids_K)
        return self.tokens.weight.index_select(0, ids_K), bias_K

    def smoothing_loss(
        self, h: Float[Tensor, "N D"], targets_N: Int[Tensor, " N"], smoothing: float
    ) -> Float[Tensor, ""]:
        """Return what label smoothing adds to the cross-entropy, summed: over all tokens, without their logits.

        Equation: ε Σ_n (z_nt − Σ_v z_nv / V), since Σ_v z_nv = h_n · Σ_v w_v
        Source: Szegedy et al. 2016, Section 7

        Args:
            h: hidden states.
            targets_N: target ids.
            smoothing: ε.
        """
        h, weight = self.scale_hidden(h), self.tokens.weight
        loss = (h * (weight.index_select(0, targets_N) - weight.mean(0))).sum()
        if self.bias is not None:
            loss = loss + (self.bias.index_select(0, targets_N) - self.bias.mean()).sum()
        return smoothing * loss

    def extra_repr(self) -> str:
        return f"bias={self.bias is not None}, scale={self.scale}"


def check_ids(ids: Tensor, size: int, what: str) -> None:
    """Raise a ValueError for an id outside 0 … size − 1; on a GPU skip the check, which would synchronize.

    Args:
        ids: token ids, or other indices.
        size: number of valid ids.
        what: the kind of ids, for the message.
    """
    if torch.compiler.is_compiling() or ids.device.type != "cpu" or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        raise ValueError(f"{what} must be in 0 … {size - 1}; got {low if low < 0 else high}")


def _sinusoids(layout: SinusoidLayout, length: int, d_model: int) -> Tensor:
    if layout == "interleaved":
        return equations.sinusoids(length, d_model)
    if layout == "concatenated":
        return equations.concatenated_sinusoids(length, d_model)
    if layout == "fairseq":
        return equations.concatenated_sinusoids(length, d_model, last=True, dtype=torch.float32)
    raise ValueError(f"layout is one of {', '.join(get_args(SinusoidLayout))}; got {layout!r}")


def _rows(table: Tensor, x: Tensor, positions: Tensor | None) -> Tensor:
    """Return the rows of a position table for x: for the given positions, or the first L."""
    length = x.shape[-2]
    if x.shape[-1] != table.shape[1]:
        raise ValueError(f"positions of width {table.shape[1]} cannot be added to vectors of width {x.shape[-1]}")
    if positions is None and length > table.shape[0]:
        raise ValueError(f"the input is {length} tokens long, but there are positions for {table.shape[0]} only")
    return table[:length] if positions is None else functional.embedding(positions, table)
