"""Attention weights of one head of a checkpoint on one text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.finite import check_finite, error_context
from clearhead.inspection.attention.capture import watch
from clearhead.inspection.attention.weights import Part
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

_SMALLEST_PRINTED = 0.0005


@dataclass(frozen=True)
class HeadAttention:
    """Attention weights of one head.

    Args:
        part: "encoder", "decoder" or "cross".
        layer, head: indices from 0.
        queries: token of each row. In "decoder" and "cross" it is the token that the row produces.
        keys: token of each column.
        weights: one row for each query, with the sum 1.
    """

    part: Part
    layer: int
    head: int
    queries: Sequence[str]
    keys: Sequence[str]
    weights: Float[Tensor, "L M"]

    def as_dict(self) -> dict[str, Any]:
        """Return the weights as JSON values."""
        indices = {"part": self.part, "layer": self.layer, "head": self.head}
        tokens = {"queries": list(self.queries), "keys": list(self.keys)}
        return indices | tokens | {"weights": self.weights.tolist()}

    def lines(self, max_keys: int = 4) -> list[str]:
        """Return one line for each query with its largest weights; weights that round to 0.000 are omitted."""
        width = max(map(len, self.queries))
        lines = []
        for query, row in zip(self.queries, self.weights, strict=True):
            largest = row.topk(min(max_keys, len(row)))
            pairs = zip(*map(Tensor.tolist, largest), strict=True)
            cells = [f"{self.keys[key]} {weight:.3f}" for weight, key in pairs if weight >= _SMALLEST_PRINTED]
            lines.append(f"{query:{width}}  →  " + "   ".join(cells))
        return lines


def head_attention(
    pipeline: TextEncoder | TextToText,
    text: str,
    layer: int,
    head: int,
    target: str | None = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> list[HeadAttention]:
    """Return the attention weights of one head on a text.

    Args:
        pipeline: the model in float32.
        text: the text; the source of an encoder–decoder.
        layer, head: indices from 0.
        target: the target of an encoder–decoder; by default the output of greedy search.
        source_lang, target_lang: languages, for models that need them.

    Returns:
        One element for an encoder. For an encoder–decoder, one for each of encoder, decoder and cross-attention that
        has this layer.

    Raises:
        ValueError: the layer or head does not exist.
        NonFiniteError: the weights hold NaN.
    """
    with error_context(index=lambda index: 0, text=lambda index: text, model=pipeline.name):
        if isinstance(pipeline, TextToText):
            attention = _seq2seq_attention(pipeline, text, layer, head, target, source_lang, target_lang)
        else:
            attention = [_encoder_attention(pipeline, text, layer, head)]
        for one in attention:
            check_finite(one.weights[None].numpy(), f"attention weights {one.part}.{layer}.{head}", [0])
    return attention


def _encoder_attention(pipeline: TextEncoder, text: str, layer: int, head: int) -> HeadAttention:
    (tokens,) = pipeline.tokenize([text])
    with torch.inference_mode(), watch(pipeline.model, layers=[layer], heads=[head]) as records:
        pipeline.model(torch.tensor([tokens.ids]))
    words = pipeline.tokenizer.display_tokens(tokens.ids)
    return HeadAttention("encoder", layer, head, words, words, records.get(layer, head)[0])


def _seq2seq_attention(
    pipeline: TextToText,
    text: str,
    layer: int,
    head: int,
    target: str | None,
    source_lang: str | None,
    target_lang: str | None,
) -> list[HeadAttention]:
    _, prepared = pipeline.prepare(text, source_lang=source_lang, target_lang=target_lang, prefix=target or "")
    source_ids, target_ids = prepared.source.ids, list(prepared.source.decoder_prefix)
    if target is None:
        (output,) = pipeline.generate(
            [text], source_lang=source_lang, target_lang=target_lang, beam_size=1, return_details=True
        )
        target_ids += output.token_ids[:-1]
    with torch.inference_mode(), watch(pipeline.model, layers=[layer], heads=[head]) as records:
        logits = pipeline.model(torch.tensor([source_ids]), torch.tensor([target_ids]))
    last = int(logits[0, -1].argmax()) if target is not None else output.token_ids[-1]
    words, read, produced = map(pipeline.tokenizer.display_tokens, (source_ids, target_ids, [*target_ids[1:], last]))
    tokens: dict[Part, tuple[list[str], list[str]]] = {
        "encoder": (words, words),
        "decoder": (produced, read),
        "cross": (produced, words),
    }
    return [
        HeadAttention(record.part, layer, head, *tokens[record.part], record.values[0, 0]) for record in records.records
    ]
