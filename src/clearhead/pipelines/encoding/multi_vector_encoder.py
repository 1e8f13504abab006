"""Encode texts as one vector for each token, and score them by late interaction (ColBERT)."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.choices import check_choice
from clearhead.equations.late_interaction import max_sim
from clearhead.equations.masks import Mask
from clearhead.finite import check_finite, error_context
from clearhead.io import hub
from clearhead.models.encoder import EncoderModel
from clearhead.pipelines.base import Pipeline, check_room, prepare_inference, warn_truncated
from clearhead.pipelines.encoding.multi_vector_settings import (
    MultiVectorSettings,
    read_multi_vector_folder,
    write_multi_vector_folder,
    write_pylate_folder,
)
from clearhead.pipelines.encoding.prompts import prompted_tokens
from clearhead.pipelines.reranker import RankedDocument, check_documents
from clearhead.runtime.packed_batch import HiddenStates, default_batch_tokens, hidden_states
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import Tokens, as_texts, check_not_blank
from clearhead.tokenizers.special_tokens import content
from clearhead.tokenizers.tokenizer import Tokenizer

TokenVectors = NDArray[np.float32]
"""Vectors of the tokens of one text (L, K)."""

_SCORED_TOGETHER = 256
"""Documents that are padded to one length and scored at once."""


class MultiVectorEncoder(Pipeline[EncoderModel]):
    """An encoder of texts as one vector per token (ColBERT). Each token of a query is compared with those of documents.

    Equation: E_i = h_i Wᵀ / ‖h_i Wᵀ‖
    Source: Khattab and Zaharia 2020, "ColBERT", Section 3.2

    Args:
        model: the encoder, in float32.
        projection: the weights W (K, D), which map hidden states to vectors of width K.
        tokenizer: its tokenizer.
        settings: prompts, lengths, query expansion and skipped tokens.
        family: the checkpoint family for `save_pretrained`.
        precision, device: as in `TextEncoder`. The projection is in float32.

    Raises:
        ValueError: an unknown device or precision, or a query expansion that the model cannot compute.

    >>> from clearhead import MultiVectorEncoder
    >>> encoder = MultiVectorEncoder.from_pretrained("my-colbert")  # doctest: +SKIP
    >>> encoder.rank("What was closed?", ["It rained.", "The bridge was closed."])[0].text  # doctest: +SKIP
    'The bridge was closed.'
    """

    def __init__(
        self,
        model: EncoderModel,
        projection: Tensor,
        tokenizer: Tokenizer,
        settings: MultiVectorSettings,
        family: EncoderFamily,
        *,
        precision: str = "auto",
        device: str = "auto",
    ) -> None:
        self.model, self.projection, self.tokenizer = model, projection, tokenizer
        self.settings, self.family, self.name = settings, family, f"of type {family.model_type}"
        given = [length for length in (settings.max_length, tokenizer.max_length) if length is not None][:1]
        self.max_length = min([*given, model.config.max_len])
        self._expansion_id = self._check_expansion()
        self._skipped = [number for word in settings.skipped if (number := tokenizer.token_id(word)) is not None]
        unknown = tokenizer.token_id(content(tokenizer.config.get("unk_token")) or "")
        self._skipped = [number for number in self._skipped if number != unknown]
        self.device, self.precision, self.int8, self.inference_model = prepare_inference(
            model, tokenizer, self.max_length, precision=precision, device=device
        )
        self._projection = projection.to(self.device)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, precision: str = "auto", device: str = "auto", revision: str | None = None
    ) -> "MultiVectorEncoder":
        """Load a late-interaction encoder: a MultiVectorEncoder folder of sentence-transformers, or one of PyLate.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, missing or broken files, or a module or option that is not supported.
        """
        folder = hub.resolve_model(name, revision)
        model, family = checkpoints.load_encoder(folder)
        settings, projection, prefixes = read_multi_vector_folder(folder, model.config.d_model)
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.config.vocab_size)
        _mark_prefixes(tokenizer, prefixes)
        with error_context(model=str(name)):
            encoder = cls(model, projection, tokenizer, settings, family, precision=precision, device=device)
        check_room(folder, tokenizer, encoder.max_length)
        encoder.name = str(name)
        return encoder

    def save_pretrained(self, folder: str | Path, *, format: str = "sentence-transformers") -> None:
        """Write a folder with the weights in float32.

        Args:
            folder: the output folder.
            format: "sentence-transformers", or "pylate". sentence-transformers opens both.

        Raises:
            ValueError: an unknown format, or settings that PyLate does not have.
        """
        check_choice("format", format, ("sentence-transformers", "pylate"))
        folder, projection = Path(folder), self.projection
        if format == "pylate":
            self._check_prefixes()
            write_pylate_folder(folder, self.settings, projection)
        else:
            write_multi_vector_folder(folder, self.settings, projection)
        self.family.save(self.model, folder)
        self.tokenizer.save(folder, self.settings.max_length)

    @overload
    def encode_query(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self, queries: str, *, batch_tokens: int | None = None
    ) -> TokenVectors: ...
    @overload
    def encode_query(self, queries: Iterable[str], *, batch_tokens: int | None = None) -> list[TokenVectors]: ...
    def encode_query(
        self, queries: str | Iterable[str], *, batch_tokens: int | None = None
    ) -> TokenVectors | list[TokenVectors]:
        """Encode queries with the query prompt, extended by mask tokens where the model was trained so.

        Args:
            queries: a query, or queries in a list or another iterable.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Returns:
            For each query, one vector of length 1 for each token, float32 (L, K).

        Raises:
            ValueError: a query that is not a Unicode string, or a prompt that leaves no room for it.
            NonFiniteError: a vector holds NaN or infinity.
        """
        listed, single = as_texts(queries)
        limit = self._query_limit()
        tokens = self._tokenize(listed, "query", limit)
        warn_truncated([text.truncated for text in tokens], limit, "Shorten them")
        vectors = self._encode(listed, self._query_states(tokens, batch_tokens))
        return vectors[0] if single else vectors

    @overload
    def encode_document(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self, documents: str, *, batch_tokens: int | None = None
    ) -> TokenVectors: ...
    @overload
    def encode_document(self, documents: Iterable[str], *, batch_tokens: int | None = None) -> list[TokenVectors]: ...
    def encode_document(
        self, documents: str | Iterable[str], *, batch_tokens: int | None = None
    ) -> TokenVectors | list[TokenVectors]:
        """Encode documents with the document prompt. Skipped tokens, such as punctuation, get no vector.

        Args:
            documents: a document, or documents in a list or another iterable.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Returns:
            For each document, one vector of length 1 for each token that is not skipped, float32 (L, K).

        Raises:
            ValueError: a document that is not a Unicode string, or a prompt that leaves no room for it.
            NonFiniteError: a vector holds NaN or infinity.
        """
        listed, single = as_texts(documents)
        limit = min(self.settings.document_length or self.max_length, self.model.config.max_len)
        tokens = self._tokenize(listed, "document", limit)
        warn_truncated([text.truncated for text in tokens], limit, "Split them", "document")
        states = hidden_states(self.inference_model, tokens, batch_tokens, self.model.config, self.device)
        vectors = self._encode(listed, states)
        if self._skipped:
            for index, text in enumerate(tokens):
                vectors[index] = vectors[index][~np.isin(text.ids, self._skipped)]
        return vectors[0] if single else vectors

    def score(self, queries: Sequence[TokenVectors], documents: Sequence[TokenVectors]) -> NDArray[np.float32]:
        """Return the MaxSim score of each query with each document, float32 (n, m).

        Args:
            queries: vectors from `encode_query`.
            documents: vectors from `encode_document`. A document without any vector scores −∞.
        """
        result = np.full((len(queries), len(documents)), -np.inf, dtype=np.float32)
        order = sorted((i for i in range(len(documents)) if len(documents[i])), key=lambda i: len(documents[i]))
        for start in range(0, len(order), _SCORED_TOGETHER):
            some = order[start : start + _SCORED_TOGETHER]
            padded = pad_sequence([torch.from_numpy(documents[index]) for index in some], batch_first=True)
            keep = torch.arange(padded.shape[1]) < torch.tensor([len(documents[index]) for index in some])[:, None]
            for row, query in enumerate(queries):
                result[row, some] = max_sim(torch.from_numpy(query), padded, keep).numpy()
        return result

    def rank(
        self, query: str, documents: Iterable[str], *, top_k: int | None = None, batch_tokens: int | None = None
    ) -> list[RankedDocument]:
        """Rank documents by their MaxSim score with a query, highest first; equal scores in the order of the documents.

        Args:
            query: the query.
            documents: the documents.
            top_k: number of documents to return; None for all.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Raises:
            ValueError: the query or a document is not a Unicode string or is blank, or top_k is below 1.
            NonFiniteError: a vector holds NaN or infinity.
        """
        if not isinstance(query, str):
            raise ValueError(f"the query is a {type(query).__name__}; expected a string")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1; got {top_k}")
        texts = check_documents(documents)
        question = self.encode_query([check_not_blank(query, "the query")], batch_tokens=batch_tokens)
        scores = self.score(question, self.encode_document(texts, batch_tokens=batch_tokens))[0].tolist()
        order = sorted(range(len(texts)), key=lambda index: -scores[index])[:top_k]
        return [RankedDocument(index, scores[index], texts[index]) for index in order]

    def _tokenize(self, texts: Sequence[str], prompt: str, limit: int) -> list[Tokens]:
        return prompted_tokens(self.tokenizer, texts, self.settings.prompts.get(prompt, ""), limit)

    def _query_limit(self) -> int:
        """Return the maximum number of tokens of a query."""
        expansion, limit = self.settings.expansion, self.settings.query_length or self.max_length
        if expansion is not None:
            limit = expansion.length if expansion.truncate else max(limit, expansion.length)
        return min(limit, self.model.config.max_len)

    def _query_states(self, tokens: Sequence[Tokens], batch_tokens: int | None) -> Iterator[HiddenStates]:
        """Yield the hidden states of queries with their mask tokens, batch by batch."""
        expansion = self.settings.expansion
        length = 0 if expansion is None else expansion.length
        masks = [[self._expansion_id] * (length - len(text.ids)) for text in tokens]
        full = [Tokens(text.ids + mask, False) for text, mask in zip(tokens, masks, strict=True)]
        unseen = [] if expansion is None or expansion.attend else [i for i, mask in enumerate(masks) if mask]
        packed = [i for i in range(len(full)) if i not in set(unseen)] if unseen else list(range(len(full)))
        some = [full[i] for i in packed]
        for indices, *rest in hidden_states(self.inference_model, some, batch_tokens, self.model.config, self.device):
            yield [packed[i] for i in indices], rest[0], rest[1]
        rows = max(1, (batch_tokens or default_batch_tokens(self.device)) // max(length, 1))
        for start in range(0, len(unseen), rows):
            indices = unseen[start : start + rows]
            ids = torch.tensor([full[i].ids for i in indices])
            keep = torch.arange(length) < torch.tensor([len(tokens[i].ids) for i in indices])[:, None]
            # not masks.padding: the mask tokens have their own positions
            seen = keep[:, None, None, :].expand(-1, 1, length, -1).to(self.device)
            self.inference_model.eval()
            with torch.inference_mode():
                hidden = self.inference_model(ids.to(self.device), Mask(length=length, bias=seen))
            yield indices, hidden, torch.ones_like(keep, device=self.device)

    def _encode(self, texts: Sequence[str], states: Iterator[HiddenStates]) -> list[TokenVectors]:
        """Return the vectors of texts, from their hidden states."""
        vectors: dict[int, TokenVectors] = {}
        with error_context(text=texts.__getitem__, model=self.name, precision=self.precision.name):
            for indices, hidden, keep in states:
                with torch.inference_mode():
                    projected = nn.functional.normalize(hidden.float() @ self._projection.mT, dim=-1).cpu()
                for index, rows, real in zip(indices, projected, keep.cpu(), strict=True):
                    vectors[index] = rows[real].numpy()
                    check_finite(vectors[index].reshape(1, -1), "vectors", [index])
        return [vectors[index] for index in range(len(texts))]

    def _check_expansion(self) -> int:
        """Return the id of the token that extends queries; -1 if they are not extended.

        Raises:
            ValueError: the tokenizer has no such token, or the model cannot compute its vectors.
        """
        expansion, tokenizer = self.settings.expansion, self.tokenizer
        if expansion is None:
            return -1
        roles = [tokenizer.config.get(f"{role}_token") for role in ("mask", "eos")]
        names = [expansion.token] if expansion.token else [name for role in roles if (name := content(role))]
        number = tokenizer.token_id(names[0]) if names else None
        if number is None:
            what = f"the token {names[0]!r}" if names else "a mask token"
            raise ValueError(f"the tokenizer does not have {what}, with which this model extends queries")
        if expansion.length > self.model.config.max_len:
            limit = self.model.config.max_len
            raise ValueError(f"queries are extended to {expansion.length} tokens, but the model takes at most {limit}")
        if tokenizer.config.get("padding_side") == "left":
            raise ValueError('the tokenizer has padding_side="left"; queries are extended at the end only')
        if (
            self.model.config.distance_terms != "none" and not expansion.attend
        ):  # transformers sets their embeddings to 0
            raise ValueError(
                f"the model {self.name} cannot extend queries by tokens that the others do not attend to. Use a folder "
                "whose query_expansion has attend=true"
            )
        query_length = self.settings.query_length
        if query_length is not None and query_length < expansion.length:
            raise ValueError(f"query_length={query_length} is below {expansion.length}, to which queries are extended")
        return number

    def _check_prefixes(self) -> None:
        """Raise an error unless PyLate can insert each prompt as one token."""
        for name in ("query", "document"):
            prompt = self.settings.prompts.get(name, "")
            if prompt and self.tokenizer.token_id(prompt) is None:
                raise ValueError(
                    f"the {name} prompt {prompt!r} is not a token of the vocabulary, which PyLate inserts into each "
                    "text. Use sentence-transformers' format"
                )


def _mark_prefixes(tokenizer: Tokenizer, prefixes: Sequence[str]) -> None:
    """Mark prefixes that are in the vocabulary as special, so that each is one token at the start of a text."""
    known = set(tokenizer.vocabulary())
    for prefix in prefixes:
        token = next((part for part in (prefix, *prefix.split(None, 1)[:1]) if part in known), None)
        if token is not None and tokenizer.backend.encode(token, add_special_tokens=False).tokens != [token]:
            tokenizer.backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
