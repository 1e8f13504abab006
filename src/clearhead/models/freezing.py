"""Freeze parts of a model: training no longer changes their parameters."""

from torch import nn

from clearhead.models.encoder import EncoderModel
from clearhead.models.heads import EncoderWithHead, MaskedLanguageModel
from clearhead.models.seq2seq import Seq2Seq


def freeze(model: nn.Module, part: str) -> None:
    """Switch off the gradients of all parameters in a part of a model.

    Encoder and decoder include their embeddings. A matrix that several parts share, such as the token embedding and
    the output projection, is frozen with any of them. Dropout stays active in a frozen part until `train(False)`.

    Args:
        model: an encoder–decoder, an encoder, or an encoder with a head.
        part: "encoder", "decoder" (with its output projection; only in an encoder–decoder) or "embeddings" (tokens,
            positions and types, with their norm).

    Raises:
        ValueError: a part that the model does not have, or an unsupported model type.

    >>> from clearhead import Seq2Seq, Seq2SeqConfig
    >>> from clearhead.models.freezing import freeze
    >>> model = Seq2Seq(Seq2SeqConfig(vocab_size=20, d_model=8, ffn_hidden=8, num_heads=2, num_layers=1))
    >>> freeze(model, "encoder")
    >>> any(parameter.requires_grad for parameter in model.encoder.parameters())
    False
    """
    parts = _parts(model)
    if part not in parts:
        raise ValueError(f"a {type(model).__name__} has these parts to freeze: {', '.join(parts)}; got {part!r}")
    for module in parts[part]:
        module.requires_grad_(False)


def _parts(model: nn.Module) -> dict[str, list[nn.Module]]:
    if isinstance(model, Seq2Seq):
        source, target = model.source_embedding, model.target_embedding
        return {
            "encoder": [source, model.encoder],
            "decoder": [target, model.decoder, model.output],
            "embeddings": [source, target],
        }
    encoder = model.encoder if isinstance(model, EncoderWithHead | MaskedLanguageModel) else model
    if not isinstance(encoder, EncoderModel):
        raise ValueError(f"parts of an encoder or an encoder–decoder can be frozen; got a {type(model).__name__}")
    return {"encoder": [encoder], "embeddings": [encoder.embedding]}
