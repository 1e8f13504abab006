"""Models with a head on an encoder: classification, answer spans and masked tokens; and pooling."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.equations import masks
from clearhead.equations.masks import MaskLike
from clearhead.layers.embedding import OutputProjection, TokenEmbedding
from clearhead.layers.feedforward import get_activation
from clearhead.layers.norm import LayerNorm
from clearhead.models.config import POOLINGS, EncoderConfig, HeadConfig, Pooling
from clearhead.models.encoder import EncoderModel, init_weights


def pool(hidden: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"], pooling: Pooling) -> Float[Tensor, "B D"]:
    """Pool hidden states to one vector for each sequence.

    Equation: mean: Σ_i keep_i h_i / Σ_i keep_i; cls: h of the first kept token; max: max over kept i of h_i
    Source: Reimers and Gurevych 2019, "Sentence-BERT", Section 3

    Args:
        hidden: hidden states (B, L, D).
        keep: bool (B, L), True at the tokens to pool. A row without any gives zeros.
        pooling: "mean", "cls" or "max".

    Raises:
        ValueError: an unknown pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is one of {', '.join(POOLINGS)}; got {pooling!r}")
    keep_BL1 = keep[:, :, None]
    if pooling == "cls":
        first_B = keep.to(torch.uint8).argmax(dim=1)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), first_B] * keep.any(dim=1)[:, None]
    if pooling == "max":
        return hidden.masked_fill(~keep_BL1, float("-inf")).amax(dim=1).masked_fill(~keep.any(dim=1)[:, None], 0.0)
    # where, not multiplication by 0: padding may hold infinite values
    total = torch.where(keep_BL1, hidden, 0.0).sum(dim=1)
    return total / keep_BL1.sum(dim=1).clamp(min=1)


class OutputHead(nn.Module):
    """An output head: from hidden vectors to one number for each label.

    Equation: y = drop(LN(act(h W_1 + b_1))) W_2 + b_2
    Source: Devlin et al. 2018, "BERT", Section 4; the first linear layer, its activation and its norm are optional

    Args:
        d_model: width D of the hidden vectors.
        config: options of the head.
        eps: ε of the norm.
        norm_bias: whether the norm has a bias.
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


class EncoderWithHead(nn.Module):
    """An encoder model and an output head: the base of classifiers over sequences and tokens.

    Args:
        config: sizes and options of the encoder.
        head: options of the head.
    """

    def __init__(self, config: EncoderConfig, head: HeadConfig) -> None:
        super().__init__()
        self.head_config = head
        self.encoder = EncoderModel(config)
        self.head = OutputHead(config.d_model, head, eps=config.eps, norm_bias=config.layer_options.has_bias("norm"))


class EncoderClassifier(EncoderWithHead):
    """A text classifier: an encoder with a head over its pooled hidden states.

    Equation: y = Head(pool(Encoder(Embedding(ids), M)))
    Source: Devlin et al. 2018, "BERT", Section 4.1; with the pooling "late", y = Σ_i keep_i Head(h_i) / Σ_i keep_i

    Args:
        config: sizes and options of the encoder.
        head: options of the head.

    `forward(ids, mask=None, token_types=None)` returns the logits (B, C) for C labels.
    """

    def forward(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B C"]:
        hidden = self.encoder(ids, mask, token_types)
        return self.logits(hidden, _padding_of(ids, mask, self.encoder.config.num_heads))

    def logits(self, hidden: Float[Tensor, "B L D"], keep: Bool[Tensor, "B L"]) -> Float[Tensor, "B C"]:
        """Return the logits (B, C) for hidden states (B, L, D) and the bool mask (B, L) of real tokens."""
        if self.head_config.pooling == "late":
            return pool(self.head(hidden.float()), keep, "mean")
        logits: Tensor = self.head(pool(hidden.float(), keep, self.head_config.pooling))
        return logits


class SpanClassifier(EncoderWithHead):
    """An extractive question answerer: an encoder with a head that scores each token as start and end of the answer.

    Equation: (s_i, e_i) = Head(h_i)
    Source: Devlin et al. 2018, "BERT", Section 4.2

    Args:
        config, head: as in `EncoderClassifier`; the head has two labels.

    `forward(ids, mask=None, token_types=None)` returns the start logits and the end logits, each (B, L).
    """

    def forward(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        start, end = self.head(self.encoder(ids, mask, token_types).float()).unbind(dim=-1)
        return start, end


class MaskedLMHead(nn.Module):
    """The head of a masked language model, between hidden states and output projection.

    Equation: z = LN(act(h W + b))
    Source: Devlin et al. 2018, "BERT", in the authors' code

    Args:
        d_model: width D of h.
        embedding_width: width E of z and of the token embedding.
        activation: as in `get_activation`.
        dense_bias: whether b exists.
        eps: ε of the norm.
        norm_bias: whether the norm has a bias.
    """

    def __init__(
        self, d_model: int, embedding_width: int, activation: str, *, dense_bias: bool, eps: float, norm_bias: bool
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, embedding_width, bias=dense_bias)
        self.activation = get_activation(activation)
        self.norm = LayerNorm(embedding_width, eps, bias=norm_bias)

    def forward(self, h: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch E"]:
        z: Tensor = self.norm(self.activation(self.dense(h.to(self.dense.weight.dtype))))
        return z


def new_masked_lm_head(config: EncoderConfig, activation: str, *, dense_bias: bool) -> MaskedLMHead:
    """Return a new head for masked language modeling on an encoder of this config; arguments as in `MaskedLMHead`."""
    head = MaskedLMHead(
        config.d_model,
        config.embedding_width,
        activation,
        dense_bias=dense_bias,
        eps=config.eps,
        norm_bias=config.layer_options.has_bias("norm"),
    )
    init_weights(head, config.embedding_width, config.initializer_range)
    return head


class MaskedLanguageModel(nn.Module):
    """A masked language model: an encoder that predicts the token at each position, BERT's training objective.

    Equation: P(token_i | ids) = softmax(z_i W_Eᵀ + b), z = LN(act(Encoder(Embedding(ids), M) W + b_z))
    Source: Devlin et al. 2018, "BERT", Section 3.1

    Args:
        config: sizes and options of the encoder. Its token embedding is also the output projection.
        activation: activation of the head: "gelu", "gelu_tanh", "relu", "silu" or "tanh".
        dense_bias: whether the linear layer of the head has a bias.
        output_bias: whether the logits have a bias.
        has_transform: whether the head has layers before the output projection: z is the hidden state where False.
        tie_output: whether the output projection is the token embedding.

    `forward(ids, mask=None, token_types=None)` returns the logits (B, L, V). They are large: a loss over few positions,
    or in chunks, needs only `hidden` and the matrix and bias of `output`.

    Raises:
        ValueError: an unknown activation; in `forward` and `hidden`, as in `EncoderModel`.

    >>> import torch; from clearhead import EncoderConfig, MaskedLanguageModel
    >>> model = MaskedLanguageModel(EncoderConfig(vocab_size=100, num_layers=2))
    >>> model(torch.randint(100, (2, 7))).shape
    torch.Size([2, 7, 100])
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        activation: str = "gelu",
        dense_bias: bool = True,
        output_bias: bool = True,
        has_transform: bool = True,
        tie_output: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.encoder = EncoderModel(config)
        self.head: MaskedLMHead | nn.Identity = nn.Identity()
        if has_transform:
            self.head = new_masked_lm_head(config, activation, dense_bias=dense_bias)
        tokens = self.encoder.embedding.tokens
        if not tie_output:
            tokens = TokenEmbedding(config.vocab_size, config.embedding_width)
            init_weights(tokens, config.embedding_width, config.initializer_range)
        self.output = OutputProjection(tokens, bias=output_bias)

    def hidden(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L E"]:
        """Return the input (B, L, E) of the output projection: z of the head."""
        z: Tensor = self.head(self.encoder(ids, mask, token_types))
        return z

    def forward(
        self, ids: Int[Tensor, "B L"], mask: MaskLike = None, token_types: Int[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L V"]:
        logits: Tensor = self.output(self.hidden(ids, mask, token_types))
        return logits


def _padding_of(ids: Tensor, mask: MaskLike, heads: int) -> Tensor:
    """Return the tokens to pool as bool (B, L): those that are not padding in the mask."""
    batch, length = ids.shape
    checked = masks.as_mask(mask, batch=batch, heads=heads, queries=length, keys=length)
    if checked is None or checked.keep_BM is None:
        return torch.ones(batch, length, dtype=torch.bool, device=ids.device)
    return checked.keep_BM.expand(batch, length)
