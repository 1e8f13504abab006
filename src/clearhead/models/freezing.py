"""Parts of a model that training leaves as they are."""

from torch import nn

from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq


def freeze(model: nn.Module, part: str) -> None:
    """Switches off the gradients of a part's parameters; training no longer changes them.

    A half's embedding belongs to it. Where source and target have one matrix of token vectors, or it is the output's
    as well, that matrix is frozen with the first of them that is. Dropout stays on in a frozen part: only
    `train(False)` switches it off.

    Args:
        model: an encoder–decoder, an encoder, or an encoder with a head.
        part: "encoder", "decoder" (with its output; of an encoder–decoder only) or "embeddings" (of tokens, positions
            and types, with their norm).

    Raises:
        ValueError: a part that the model does not have; a model of another kind.

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
    body = getattr(model, "body", model)
    if not isinstance(body, EncoderModel):
        raise ValueError(f"parts of an encoder or an encoder–decoder can be frozen; got a {type(model).__name__}")
    return {"encoder": [body], "embeddings": [body.embedding]}
