"""From token ids to the vectors that the first layer sees."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from clearhead.equations import positions as equations
from clearhead.layers.norm import LayerNorm


class TokenEmbedding(nn.Module):
    """One vector for each token of the vocabulary.

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
    """Sinusoids, added: a buffer, not trained and not saved.

    Equation: PE(i, 2j) = sin(i / 10000^(2j/d)), PE(i, 2j+1) = cos(i / 10000^(2j/d))
    Source: Section 3.5 of "Attention Is All You Need"

    Args:
        d_model: width D; odd ones end with a sine.
        max_len: longest input, in tokens.

    Raises:
        ValueError: in `forward`, an input longer than max_len.

    >>> import torch; from clearhead import PositionalEncoding
    >>> PositionalEncoding(4)(torch.zeros(1, 1, 4))
    tensor([[[0., 1., 0., 1.]]])
    """

    pe: Tensor

    def __init__(self, d_model: int, max_len: int = 5000) -> None:
        super().__init__()
        self.register_buffer("pe", equations.sinusoids(max_len, d_model), persistent=False)

    def forward(
        self, x: Float[Tensor, "*batch L D"], positions: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*batch L D"]:
        return equations.add_positions(x, _rows(self.pe, x, positions))


class LearnedPositionalEncoding(nn.Module):
    """One trained vector for each position, added.

    Equation: X′ = X + PE, PE a trained matrix
    Source: Section 3.5 of "Attention Is All You Need" (its variant); Devlin et al. 2018, "BERT"

    Args: as in `PositionalEncoding`.
    """

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.weight)

    def forward(
        self, x: Float[Tensor, "*batch L D"], positions: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*batch L D"]:
        return equations.add_positions(x, _rows(self.weight, x, positions))


class TokenTypes(nn.Module):
    """Which of two joined texts a token belongs to, added; type 0 everywhere when nothing is said.

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
    """Tokens, positions and token types summed, then normalised and dropped out as the model wants.

    Equation: drop(LN(X + PE + T))
    Source: Sections 3.4, 3.5 and 5.4 of "Attention Is All You Need"; the norm and T are BERT's

    Args:
        tokens: the token embedding.
        positions: what adds the positions; None where attention itself knows them (rotary).
        types: what adds the token types, if the model has them.
        norm: the norm after the sum, if the model has one.
        drop_prob: dropout of the sum.
    """

    def __init__(
        self,
        tokens: TokenEmbedding,
        *,
        positions: PositionalEncoding | LearnedPositionalEncoding | None = None,
        types: TokenTypes | None = None,
        norm: LayerNorm | None = None,
        drop_prob: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.types = types
        self.norm = norm
        self.dropout = nn.Dropout(drop_prob)

    def forward(
        self,
        ids: Int[Tensor, "B L"],
        positions: Int[Tensor, "B L"] | None = None,
        types: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        x: Tensor = self.tokens(ids)
        if self.types is not None:
            x = self.types(x, types)
        elif types is not None:
            raise ValueError("token types were given, but this model has no token types")
        if self.positions is not None:
            x = self.positions(x, positions)
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped


def check_ids(ids: Tensor, size: int, what: str) -> None:
    """Raises a ValueError for an id outside 0 … size − 1. Not on an accelerator, where looking would mean waiting."""
    if torch.compiler.is_compiling() or ids.device.type != "cpu" or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        raise ValueError(f"{what} must lie in 0 … {size - 1}; got {low if low < 0 else high}")


def _rows(table: Tensor, x: Tensor, positions: Tensor | None) -> Tensor:
    """The table's rows for x's positions: the first L where none are given."""
    length = x.shape[-2]
    if x.shape[-1] != table.shape[1]:
        raise ValueError(f"positions of width {table.shape[1]} cannot be added to vectors of width {x.shape[-1]}")
    if positions is None and length > table.shape[0]:
        raise ValueError(f"the input is {length} tokens long, but there are positions for {table.shape[0]} only")
    return table[:length] if positions is None else functional.embedding(positions, table)
