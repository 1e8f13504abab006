"""How families keep their heads: names and keys, as data."""

from dataclasses import dataclass
from typing import Literal

from clearhead.checkpoints.schema.parameter_names import Rows

Task = Literal["classification", "span"]


@dataclass(frozen=True)
class HeadFormat:
    """How a family keeps one kind of head.

    Args:
        architecture: the class that transformers opens the saved folder with.
        rows: foreign tensor name -> name in our `OutputHead`.
        activation, dense_bias, norm: as in `HeadConfig`.
        activation_key, bias_key: config.json keys that say activation and dense_bias instead, if the family has them.
    """

    architecture: str
    rows: Rows
    activation: Literal["tanh", "relu", "gelu"] | None = None
    dense_bias: bool = True
    norm: bool = False
    activation_key: str | None = None
    bias_key: str | None = None


@dataclass(frozen=True)
class MaskedFormat:
    """How a family keeps its head for hidden tokens.

    Args:
        architecture: the class that transformers opens the saved folder with.
        rows: foreign tensor name -> name in our `MaskedLanguageModel`.
        decoder: module whose weight is the token embedding, and whose bias is the output's: files may hold them again.
        activation: the head's; as the body's where None.
        activation_key, dense_bias_key, output_bias_key: config.json keys that say otherwise, if the family has them.
        dense_bias: whether the first map has a bias, where no key says.
    """

    architecture: str
    rows: Rows
    decoder: str
    activation: str | None = None
    activation_key: str | None = None
    dense_bias_key: str | None = None
    output_bias_key: str | None = None
    dense_bias: bool = True
