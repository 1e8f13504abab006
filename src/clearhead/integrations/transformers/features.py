"""The pipeline "feature-extraction"."""

from collections.abc import Mapping
from typing import Any

import torch

from clearhead.integrations.transformers.base import TextPipeline
from clearhead.pipelines.base import warn_truncated
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.vectors import EncodeOptions
from clearhead.tokenizers.base import check_texts


class FeatureExtraction(TextPipeline):
    """Hidden states of the last layer: for a text, a nested list (1, length, d), or a tensor with `return_tensors`."""

    options = ("return_tensors",)

    def __init__(self, task: str, encoder: TextEncoder, defaults: Mapping[str, Any]) -> None:
        super().__init__(task, defaults)
        self.model = encoder

    def compute(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        encoder = self.model
        limit = encoder.model.config.max_len
        tokens = encoder.tokenizer.encode(check_texts(inputs), limit)
        warn_truncated([text.truncated for text in tokens], limit, "Split them")
        rows = encoder.encode_tokens(tokens, EncodeOptions(pooling="tokens", normalize=False))
        if options.get("return_tensors"):
            return [torch.from_numpy(row)[None] for row in rows]
        return [[row.tolist()] for row in rows]
