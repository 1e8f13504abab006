"""Embeddings for LangChain."""

from pathlib import Path
from typing import Unpack, cast

from clearhead.integrations.extras import framework
from clearhead.io import hub
from clearhead.pipelines.encoding.keywords import EncodeKeywords
from clearhead.pipelines.text_encoder import TextEncoder

with framework("langchain"):
    from langchain_core.embeddings import Embeddings


class ClearheadEmbeddings(Embeddings):
    """A text encoder as LangChain's `Embeddings`.

    Queries and documents have the prompts of `TextEncoder.encode_query` and `encode_document`.

    Args:
        model: a folder, a Hub id, or an encoder.
        precision, device: as in `TextEncoder`; not used for an encoder.
        options: arguments of `TextEncoder.encode` for every call, such as normalize=True.

    Raises:
        ValueError: as in `TextEncoder.from_pretrained`.

    >>> from clearhead.integrations.langchain import ClearheadEmbeddings
    >>> len(ClearheadEmbeddings(precision="float32").embed_query("What was closed?"))
    384
    """

    def __init__(
        self,
        model: str | Path | TextEncoder = hub.DEFAULT_MODEL,
        *,
        precision: str = "auto",
        device: str = "auto",
        **options: Unpack[EncodeKeywords],
    ) -> None:
        loaded = isinstance(model, TextEncoder)
        self.encoder = (
            cast(TextEncoder, model)
            if loaded
            else TextEncoder.from_pretrained(cast(str, model), precision=precision, device=device)
        )
        self.options = options

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vector of each document."""
        return cast(list[list[float]], self.encoder.encode_document(texts, **self.options).tolist())

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return cast(list[float], self.encoder.encode_query(text, **self.options).tolist())
