"""Embeddings for LlamaIndex."""

import asyncio
from typing import Any, cast

from clearhead.integrations.extras import framework
from clearhead.io import hub
from clearhead.pipelines.text_encoder import TextEncoder

with framework("llama-index"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from pydantic import Field, PrivateAttr


class ClearheadEmbedding(BaseEmbedding):
    """A text encoder as LlamaIndex's `BaseEmbedding`.

    Queries and texts have the prompts of `TextEncoder.encode_query` and `encode_document`.

    Args:
        model_name: a folder or a Hub id.
        precision, device: as in `TextEncoder`.
        encode_options: arguments of `TextEncoder.encode` for every call, such as {"normalize": True}.

    Raises:
        ValueError: as in `TextEncoder.from_pretrained`.

    >>> from clearhead.integrations.llama_index import ClearheadEmbedding
    >>> len(ClearheadEmbedding(precision="float32").get_query_embedding("What was closed?"))
    384
    """

    precision: str = Field(default="auto", description="Precision of the computation.")
    device: str = Field(default="auto", description="Device of the computation.")
    encode_options: dict[str, Any] = Field(default_factory=dict, description="Arguments of TextEncoder.encode.")
    _encoder: TextEncoder = PrivateAttr()

    def __init__(self, model_name: str = hub.DEFAULT_MODEL, **fields: Any) -> None:
        super().__init__(model_name=model_name, **fields)
        self._encoder = TextEncoder.from_pretrained(model_name, precision=self.precision, device=self.device)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex stores the class."""
        return "ClearheadEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return cast(list[float], self._encoder.encode_query(query, **self.encode_options).tolist())

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return cast(list[list[float]], self._encoder.encode_document(texts, **self.encode_options).tolist())

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
