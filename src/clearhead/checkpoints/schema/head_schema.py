"""Heads of a family: names of their tensors and config.json keys, as data."""

from dataclasses import dataclass
from typing import Literal

from clearhead.checkpoints.schema.parameter_names import Rows

Task = Literal["classification", "span"]


@dataclass(frozen=True)
class HeadSchema:
    """Names and options of a family's classification or span head.

    Args:
        architecture: the class that transformers opens the saved folder with.
        rows: foreign tensor name -> name in our `OutputHead`.
        activation, dense_bias, norm: as in `HeadConfig`.
        activation_key, bias_key: the config.json keys that override activation and dense_bias; None without such keys.
    """

    architecture: str
    rows: Rows
    activation: Literal["tanh", "relu", "gelu"] | None = None
    dense_bias: bool = True
    norm: bool = False
    activation_key: str | None = None
    bias_key: str | None = None


@dataclass(frozen=True)
class MaskedLMSchema:
    """Names and options of a family's head for masked language modeling.

    Args:
        architecture: the class that transformers opens the saved folder with.
        rows: foreign tensor name -> name in our `MaskedLanguageModel`.
        decoder: the module with the tied output: files may contain second copies of its weight, the token embedding,
            and of its bias.
        activation: the activation of the head; None for the encoder's.
        activation_key, dense_bias_key, output_bias_key: the config.json keys that override the options; None without
            such keys.
        dense_bias, output_bias: the defaults for a bias in the first layer, and of the logits.
        has_transform: as in `MaskedLanguageModel`.
        tied: whether the output is always the token embedding. Where False, tie_word_embeddings in config.json decides.
        others: other forms of the same head, which are only read.
    """

    architecture: str
    rows: Rows
    decoder: str
    activation: str | None = None
    activation_key: str | None = None
    dense_bias_key: str | None = None
    output_bias_key: str | None = None
    dense_bias: bool = True
    output_bias: bool = True
    has_transform: bool = True
    tied: bool = True
    others: tuple["MaskedLMSchema", ...] = ()
