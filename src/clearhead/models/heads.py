"""What turns an encoder's hidden states into an answer: pooling, a classification, a span, a hidden token."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.embedding import OutputProjection
from clearhead.layers.feedforward import get_activation
from clearhead.layers.norm import LayerNorm
from clearhead.models.config import POOLINGS, EncoderConfig, HeadConfig, Pooling
from clearhead.models.encoder import EncoderModel, init_weights


def pool(hidden: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"], pooling: Pooling) -> Float[Tensor, "B D"]:
    """One vector for each text, over its kept tokens.

    Equation: mean: Σ_i keep_i h_i / Σ_i keep_i; cls: h of the first kept token; max: max over kept i of h_i
    Source: Reimers and Gurevych 2019, "Sentence-BERT", Section 3

    Args:
        hidden: hidden states (B, L, D).
        keep: bool (B, L), True at the tokens that count. A row without any gives zeros.
        pooling: "mean", "cls" or "max".

    Raises:
        ValueError: another pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is one of {', '.join(POOLINGS)}; got {pooling!r}")
    keep_BL1 = keep[:, :, None]
    if pooling == "cls":
        first_B = keep.to(torch.uint8).argmax(dim=1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), first_B] * keep.any(dim=1)[:, None]
    if pooling == "max":
        return hidden.masked_fill(~keep_BL1, float("-inf")).amax(dim=1).masked_fill(~keep.any(dim=1)[:, None], 0.0)
    # padding is left out by where, not by a product: what stands there may be anything, also infinite
    total = torch.where(keep_BL1, hidden, 0.0).sum(dim=1)
    return total / keep_BL1.sum(dim=1).clamp(min=1)


class OutputHead(nn.Module):
    """From hidden vectors to one number for each label.

    Equation: y = drop(LN(act(h W_1 + b_1))) W_2 + b_2
    Source: Devlin et al. 2018, "BERT", Section 4; the first map, its activation and its norm are there if the config
        says so

    Args:
        d_model: width D of the hidden vectors.
        config: the head's plan.
        eps, norm_bias: of the norm.
    """

    def __init__(self, d_model: int, config: HeadConfig, *, eps: float, norm_bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=config.dense_bias) if config.activation else None
        self.activation = get_activation(config.activation) if config.activation else None
        self.norm = LayerNorm(d_model, eps, bias=norm_bias) if config.norm else None
        self.dropout = nn.Dropout(config.drop_prob)
        self.out = nn.Linear(d_model, len(config.labels))

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch C"]:
        if self.dense is not None and self.activation is not None:
            h = self.activation(self.dense(h))
        if self.norm is not None:
            h = self.norm(h)
        y: Tensor = self.out(self.dropout(h))
        return y


class _WithHead(nn.Module):
    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        self.head_config = head
        self.body = EncoderModel(config)
        self.head = OutputHead(config.d_model, head, eps=config.eps, norm_bias=config.bias)


class EncoderClassifier(_WithHead):
    """An encoder with a head over its pooled hidden states.

    Equation: y = Head(pool(Encoder(Embedding(ids), M)))
    Source: Devlin et al. 2018, "BERT", Section 4.1

    Args:
        config: the encoder's plan.
        head: the head's plan.

    `forward(ids, mask=None, token_types=None)` gives the logits (B, C), C labels.
    """

    def forward(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B C"]:
        hidden = self.body(ids, mask, token_types)
        return self.answer(hidden, _kept(ids, mask, self.body.config.num_heads))

    def answer(self, hidden: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"]) -> Float[Tensor, "B C"]:
        """The logits (B, C) for hidden states (B, L, D) and the bool mask (B, L) of real tokens."""
        logits: Tensor = self.head(pool(hidden.float(), keep, self.head_config.pooling))
        return logits


class SpanClassifier(_WithHead):
    """An encoder with a head over each token: does an answer begin here, does it end here?

    Equation: (s_i, e_i) = Head(h_i)
    Source: Devlin et al. 2018, "BERT", Section 4.2

    Args: as in `EncoderClassifier`; the head has two labels.

    `forward(ids, mask=None, token_types=None)` gives the logits of beginnings and of ends, each (B, L).
    """

    def forward(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        begin, end = self.head(self.body(ids, mask, token_types).float()).unbind(dim=-1)
        return begin, end


class MaskedLMHead(nn.Module):
    """What stands between an encoder and its scores of tokens.

    Equation: z = LN(act(h W + b))
    Source: Devlin et al. 2018, "BERT", in the authors' code

    Args:
        d_model: width D.
        activation: as in `get_activation`.
        dense_bias: whether there is a b.
        eps, norm_bias: of the norm.
    """

    def __init__(self, d_model: int, activation: str, *, dense_bias: bool, eps: float, norm_bias: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=dense_bias)
        self.activation = get_activation(activation)
        self.norm = LayerNorm(d_model, eps, bias=norm_bias)

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        z: Tensor = self.norm(self.activation(self.dense(h.to(self.dense.weight.dtype))))
        return z


class MaskedLanguageModel(nn.Module):
    """An encoder that says of each place which token stands there: what BERT learns from.

    Equation: P(token_i | ids) = softmax(z_i W_Eᵀ + b), z = LN(act(Encoder(Embedding(ids), M) W + b_z))
    Source: Devlin et al. 2018, "BERT", Section 3.1

    Args:
        config: the encoder's plan. Its token embedding is the output's matrix, too.
        activation: of the head: "gelu", "gelu_tanh", "relu", "silu" or "tanh".
        dense_bias: whether the head's map has a bias.
        output_bias: whether the scores have one.

    `forward(ids, mask=None, token_types=None)` gives the logits (B, L, V). They are large: a loss over few places, or
    one that works in pieces, takes `hidden` and the matrix and bias of `output`.

    Raises:
        ValueError: another activation; in `forward` and `hidden`, as in `EncoderModel`.

    >>> import torch; from clearhead import EncoderConfig, MaskedLanguageModel
    >>> model = MaskedLanguageModel(EncoderConfig(vocab_size=100, num_layers=2))
    >>> model(torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 100])
    """

    def __init__(
        self, config: EncoderConfig, *, activation: str = "gelu", dense_bias: bool = True, output_bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = activation
        self.body = EncoderModel(config)
        self.head = MaskedLMHead(
            config.d_model, activation, dense_bias=dense_bias, eps=config.eps, norm_bias=config.bias
        )
        self.output = OutputProjection(self.body.embedding.tokens, bias=output_bias)
        init_weights(self.head, config.d_model, config.initializer_range)

    def hidden(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """What the output's matrix is multiplied with (B, L, D): the head's z."""
        z: Tensor = self.head(self.body(ids, mask, token_types))
        return z

    def forward(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L V"]:
        logits: Tensor = self.output(self.hidden(ids, mask, token_types))
        return logits


def _kept(ids: Tensor, mask: MaskLike, heads: int) -> Tensor:
    """Which tokens count in the pooling: those that the mask's padding keeps."""
    batch, length = ids.shape
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=length, keys=length)
    if checked is None or checked.keep_BM is None:
        return torch.ones(batch, length, dtype=torch.bool, device=ids.device)
    return checked.keep_BM.expand(batch, length)
