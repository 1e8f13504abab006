"""Encode queries and documents, and compare texts and their vectors."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, cast, overload

import torch
from torch import Tensor

from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.models.encoder import EncoderModel
from clearhead.pipelines.base import Pipeline
from clearhead.runtime.vectors import AnyVectors, Vectors, as_vectors, cosine_similarity, pairwise_cosine

Texts = str | Iterable[str]
"""One text, or several in an order."""

_QUERY_PROMPTS = ("query",)
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class VectorComparison(Pipeline[EncoderModel]):
    """An encoder that encodes queries and documents, and compares texts."""

    settings: SentenceSettings

    @abstractmethod
    def encode(self, texts: Texts, *arguments: Any, **options: Any) -> Any:
        """Encode each text as one vector."""

    def encode_query(self, texts: Texts, **options: Any) -> Any:
        """Encode queries: as `encode`, with the model's prompt "query" if it has one and no other prompt is given.

        Args:
            texts, options: as in `encode`.

        >>> from clearhead import TextEncoder
        >>> TextEncoder.from_pretrained().encode_query("What was closed?").shape
        (384,)
        """
        return self.encode(texts, **self._with_prompt(options, _QUERY_PROMPTS))

    def encode_document(self, texts: Texts, **options: Any) -> Any:
        """Encode documents: as `encode_query`, with the model's prompt "document", or else "passage" or "corpus".

        Args:
            texts, options: as in `encode`.

        >>> from clearhead import TextEncoder
        >>> TextEncoder.from_pretrained().encode_document(["The bridge was closed."]).shape
        (1, 384)
        """
        return self.encode(texts, **self._with_prompt(options, _DOCUMENT_PROMPTS))

    def _with_prompt(self, options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return options
        name = next((name for name in names if name in self.settings.prompts), None)
        return {**options, "prompt_name": name}

    @overload
    def similarity(self, first: Tensor, second: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def similarity(self, first: "Texts | AnyVectors", second: "Texts | AnyVectors") -> Vectors: ...
    def similarity(self, first: "Texts | AnyVectors", second: "Texts | AnyVectors") -> Vectors | Tensor:
        """Return the cosine of each vector of one argument with each vector of the other.

        Equation: cos(u, v) = u · v / (‖u‖ ‖v‖)

        Args:
            first: texts, which are encoded, or their vectors, as (n, d) or a list. A single text or vector drops its
                dimension.
            second: the same, (m, d).

        Returns:
            float32 (n, m): a tensor if both arguments are tensors, otherwise an array.

        Raises:
            ValueError: vectors of different widths; otherwise as in `encode`.

        >>> from clearhead import TextEncoder
        >>> encoder = TextEncoder.from_pretrained()
        >>> encoder.similarity("The cat sleeps.", ["A cat is asleep.", "It rains."]).argmax()
        np.int64(0)
        """
        cosines = cosine_similarity(self._vectors(first), self._vectors(second))
        return _like(cosines, first, second)

    @overload
    def similarity_pairwise(self, first: Tensor, second: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def similarity_pairwise(self, first: "Texts | AnyVectors", second: "Texts | AnyVectors") -> Vectors: ...
    def similarity_pairwise(self, first: "Texts | AnyVectors", second: "Texts | AnyVectors") -> Vectors | Tensor:
        """Return the cosine of each vector of one argument with the vector at the same index of the other.

        Args:
            first, second: as in `similarity`, both (n, d).

        Returns:
            float32 (n,): a tensor if both arguments are tensors, otherwise an array.

        Raises:
            ValueError: vectors of different shapes; otherwise as in `encode`.

        >>> from clearhead import TextEncoder
        >>> encoder = TextEncoder.from_pretrained()
        >>> encoder.similarity_pairwise(["It rains.", "A cat."], ["It is raining.", "A car."]).shape
        (2,)
        """
        return _like(pairwise_cosine(self._vectors(first), self._vectors(second)), first, second)

    def _vectors(self, argument: "Texts | AnyVectors") -> Vectors:
        vectors = as_vectors(argument)
        return cast(Vectors, self.encode(cast(Texts, argument))) if vectors is None else vectors


def _like(cosines: Vectors, first: object, second: object) -> Vectors | Tensor:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.from_numpy(cosines).to(first.device) if cosines.shape else torch.tensor(float(cosines))
    return cosines
