"""One attention head of a checkpoint on a text: who looks at whom, and how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.finite import check_finite, naming
from clearhead.inspection.attention.capture import Part, watch
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

_SHOWN = 0.0005


@dataclass(frozen=True)
class HeadAttention:
    """What one head looks at.

    Args:
        part: "encoder", "decoder" or "cross".
        layer, head: their numbers, from 0.
        queries, keys: the tokens that look, and those that are looked at.
        weights: a row for each query; each sums to 1.
    """

    part: Part
    layer: int
    head: int
    queries: Sequence[str]
    keys: Sequence[str]
    weights: Float[Tensor, "L M"]

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        about = {"part": self.part, "layer": self.layer, "head": self.head}
        tokens = {"queries": list(self.queries), "keys": list(self.keys)}
        return about | tokens | {"weights": self.weights.tolist()}

    def lines(self, most: int = 4) -> list[str]:
        """A line for each query: its heaviest keys, with their weights; what would round to nothing is left out."""
        width = max(map(len, self.queries))
        found = []
        for query, row in zip(self.queries, self.weights, strict=True):
            best = row.topk(min(most, len(row)))
            pairs = zip(*map(Tensor.tolist, best), strict=True)
            shown = [f"{self.keys[key]} {weight:.3f}" for weight, key in pairs if weight >= _SHOWN]
            found.append(f"{query:{width}}  →  " + "   ".join(shown))
        return found


def head_attention(
    made: TextEncoder | TextToText,
    text: str,
    layer: int,
    head: int,
    target: str | None = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> list[HeadAttention]:
    """The weights of one head, recomputed beside a run on the fused kernels.

    Args:
        made: the model, in float32.
        text: the text; of an encoder–decoder, the source.
        layer, head: their numbers, from 0.
        target: of an encoder–decoder; what it says greedily where None.
        source_lang, target_lang: for encoder–decoders that are told them.

    Returns:
        One for an encoder; for an encoder–decoder those of its encoder, its decoder and its cross-attention that there
        are.

    Raises:
        ValueError: there is no such layer or head.
        NonFiniteError: the weights hold NaN.
    """
    with naming(index=lambda index: 0, text=lambda index: text, model=made.name):
        if isinstance(made, TextToText):
            found = _of_both(made, text, layer, head, target, source_lang, target_lang)
        else:
            found = [_of_encoder(made, text, layer, head)]
        for one in found:
            check_finite(one.weights[None].numpy(), f"attention weights {one.part}.{layer}.{head}", [0])
    return found


def _of_encoder(made: TextEncoder, text: str, layer: int, head: int) -> HeadAttention:
    (tokens,) = made.tokenize([text])
    with torch.inference_mode(), watch(made.model, layers=[layer], heads=[head]) as seen:
        made.model(torch.tensor([tokens.ids]))
    words = made.tokenizer.display_tokens(tokens.ids)
    return HeadAttention("encoder", layer, head, words, words, seen.of(layer, head)[0])


def _of_both(
    made: TextToText,
    text: str,
    layer: int,
    head: int,
    target: str | None,
    source_lang: str | None,
    target_lang: str | None,
) -> list[HeadAttention]:
    _, prepared = made.prepare(text, source_lang=source_lang, target_lang=target_lang, prefix=target or "")
    source, given = prepared.source.ids, list(prepared.source.decoder_prefix)
    if target is None:
        (best,) = made.generate(
            [text], source_lang=source_lang, target_lang=target_lang, beam_size=1, return_details=True
        )
        given += best.token_ids[:-1]
    with torch.inference_mode(), watch(made.model, layers=[layer], heads=[head]) as seen:
        made.model(torch.tensor([source]), torch.tensor([given]))
    words, target_words = made.tokenizer.display_tokens(source), made.tokenizer.display_tokens(given)
    sides: dict[Part, tuple[list[str], list[str]]] = {
        "encoder": (words, words),
        "decoder": (target_words, target_words),
        "cross": (target_words, words),
    }
    found = []
    for record in seen.records:
        queries, keys = sides[record.part]
        found.append(HeadAttention(record.part, layer, head, queries, keys, record.values[0, 0]))
    return found
