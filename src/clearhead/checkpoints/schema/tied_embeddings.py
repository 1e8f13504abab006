"""Find out which embedding and output matrices of an encoder–decoder file are tied."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_NAMES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


def split_embeddings(tensors: dict[str, Tensor], data: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    """Remove the embedding and output matrices from a file's tensors; return the distinct ones under our names.

    A missing matrix is tied. A matrix that equals another is tied too, unless config.json has the tie switched off:
    training may change them separately.

    Args:
        tensors: the tensors of the file; the four matrices are removed.
        data: the contents of config.json.
        source: the path of the file, for messages.

    Raises:
        ValueError: there is no embedding, or no output though config.json has no tie.
    """
    shared, encoder, decoder, output = (tensors.pop(name, None) for name in _NAMES)
    encoder = shared if encoder is None else encoder
    decoder = shared if decoder is None else decoder
    encoder = decoder if encoder is None else encoder
    if encoder is None or decoder is None:
        raise ValueError(f"{source}: tensor shared.weight is missing")
    result = {"source_embedding.tokens.weight": encoder}
    if data.get("share_encoder_decoder_embeddings") is False or not _equal(encoder, decoder):
        result["target_embedding.tokens.weight"] = decoder
    untied = data.get("tie_word_embeddings") is False
    if untied and output is None:
        raise ValueError(f"{source}: tensor lm_head.weight is missing, but config.json has tie_word_embeddings=false")
    if output is not None and (untied or not _equal(output, decoder)):
        result["output.tokens.weight"] = output
    return result


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))
