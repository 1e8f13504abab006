"""A transformer from texts to vectors for scikit-learn."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from clearhead.integrations.extras import framework
from clearhead.io import hub
from clearhead.models.config import Pooling
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.runtime.vectors import Vectors
from clearhead.tokenizers.base import check_texts

with framework("sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted

_CACHED_MODELS = 2


class TextVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A text encoder as a transformer of scikit-learn: from n texts to vectors (n, d) in float32.

    It learns nothing from data. It holds the name of its model, which clones and copies in other processes load again
    and each process loads once; pickles are small.

    Args:
        model: a folder or a Hub id.
        precision, device: as in `TextEncoder`.
        pooling, normalize, max_length, prompt, truncate_dim: as in `TextEncoder.encode`.

    >>> from clearhead.integrations.sklearn import TextVectorizer
    >>> TextVectorizer(truncate_dim=8).fit_transform(["It rains.", "The bridge was closed."]).shape
    (2, 8)
    """

    def __init__(
        self,
        model: str | Path = hub.DEFAULT_MODEL,
        *,
        precision: str = "auto",
        device: str = "auto",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        self.model = model
        self.precision = precision
        self.device = device
        self.pooling = pooling
        self.normalize = normalize
        self.max_length = max_length
        self.prompt = prompt
        self.truncate_dim = truncate_dim

    def fit(self, X: Any, y: object = None) -> "TextVectorizer":
        """Load the model, and check the options.

        Args:
            X: not used.
            y: not used.

        Raises:
            ValueError: as in `TextEncoder.from_pretrained`; truncate_dim out of range.
        """
        self.n_features_out_ = self._encoder().width(self.truncate_dim)
        return self

    def transform(self, X: Any) -> Vectors:
        """Return the vector of each text, float32 (n, d).

        Args:
            X: texts in a list, an array (n,), a pandas Series or another ordered iterable.

        Raises:
            ValueError: as in `TextEncoder.encode`.
            NotFittedError: `fit` was not called.
        """
        check_is_fitted(self)
        if getattr(X, "ndim", 1) != 1:
            raise ValueError(f"expected texts in one dimension, got {X.ndim}. Pass one column")
        return self._encoder().encode(
            check_texts(X),
            pooling=self.pooling,
            normalize=self.normalize,
            max_length=self.max_length,
            prompt=self.prompt,
            truncate_dim=self.truncate_dim,
        )

    @property
    def _n_features_out(self) -> int:
        return self.n_features_out_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        tags.transformer_tags.preserves_dtype = []
        tags.requires_fit = True
        return tags

    def _encoder(self) -> TextEncoder:
        return _load(str(self.model), self.precision, self.device)


@lru_cache(_CACHED_MODELS)
def _load(model: str, precision: str, device: str) -> TextEncoder:
    return TextEncoder.from_pretrained(model, precision=precision, device=device)
