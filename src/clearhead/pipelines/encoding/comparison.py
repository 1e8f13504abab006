"""Compare texts and their vectors."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, cast

from clearhead.runtime.vectors import AnyVectors, Vectors, as_vectors, cosine_similarity

Texts = str | Iterable[str]
"""One text, or several in an order."""


class VectorComparison(ABC):
    """Comparison of texts by an encoder."""

    @abstractmethod
    def encode(self, texts: Texts, *arguments: Any, **options: Any) -> Any:
        """Encode each text as one vector."""

    def similarity(self, first: "Texts | AnyVectors", second: "Texts | AnyVectors") -> Vectors:
        """Return the cosine of each vector of one argument with each vector of the other.

        Equation: cos(u, v) = u · v / (‖u‖ ‖v‖)

        Args:
            first: texts, which are encoded, or their vectors, as (n, d) or a list. A single text or vector drops its
                dimension.
            second: the same, (m, d).

        Returns:
            float32 (n, m).

        Raises:
            ValueError: vectors of different widths; otherwise as in `encode`.

        >>> from clearhead import TextEncoder
        >>> encoder = TextEncoder.from_pretrained()
        >>> encoder.similarity("The cat sleeps.", ["A cat is asleep.", "It rains."]).argmax()
        np.int64(0)
        """
        return cosine_similarity(self._vectors(first), self._vectors(second))

    def _vectors(self, argument: "Texts | AnyVectors") -> Vectors:
        vectors = as_vectors(argument)
        return self.encode(cast(Texts, argument)) if vectors is None else vectors
