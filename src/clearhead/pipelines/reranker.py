"""Score pairs of texts with a cross-encoder, and rank documents by their relevance to a query."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints import sentence_transformers
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import CrossEncoderSettings
from clearhead.finite import check_finite, error_context
from clearhead.io import hub
from clearhead.models.heads import EncoderClassifier
from clearhead.pipelines.base import Pipeline, check_room, prepare_inference, warn_truncated
from clearhead.runtime.int8.files import int8_file
from clearhead.runtime.packed_batch import check_not_empty, packed_batches
from clearhead.runtime.streaming import WINDOW_TEXTS, prefetch
from clearhead.tokenizers.auto import check_pairs, check_vocabulary
from clearhead.tokenizers.base import PairTokens, check_not_blank, iterate_texts
from clearhead.tokenizers.tokenizer import Tokenizer

Pair = tuple[str, str]


@dataclass(frozen=True)
class RankedDocument:
    """A document of a ranking.

    Args:
        index: index of the document in the input.
        score: its relevance to the query.
        text: the document.
        truncated: whether query and document were longer than the model's limit and were truncated.

    >>> from clearhead import RankedDocument
    >>> RankedDocument(0, 0.98, "The bridge was closed.").score
    0.98
    """

    index: int
    score: float
    text: str
    truncated: bool = False


class Reranker(Pipeline[EncoderClassifier]):
    """A cross-encoder: an encoder with a classification head that reads a query and a document together.

    Equation: s(q, d) = act(Head(pool(Encoder([CLS] q [SEP] d [SEP]))))
    Source: Nogueira and Cho 2019, "Passage Re-ranking with BERT", Section 3

    Args:
        model: the encoder with its head, in float32.
        tokenizer: its tokenizer, which has the template of a pair.
        family: the checkpoint family for `save_pretrained`.
        settings: activation, maximum length and prompts; None for sigmoid with one label and the logits with several.
        precision: "float32", "bfloat16", "int8", or "auto", the fastest accurate one on this processor. The logits are
            in float32.
        device: "auto", "cpu", "cuda" ...
        int8_weights: as in `TextEncoder`.

    >>> from clearhead import Reranker
    >>> reranker = Reranker.from_pretrained("my-reranker")  # doctest: +SKIP
    >>> reranker.rank("What was closed?", ["It rained.", "The bridge was closed."])[0].text  # doctest: +SKIP
    'The bridge was closed.'
    """

    def __init__(
        self,
        model: EncoderClassifier,
        tokenizer: Tokenizer,
        family: EncoderFamily,
        settings: CrossEncoderSettings | None = None,
        *,
        precision: str = "auto",
        device: str = "auto",
        int8_weights: Path | None = None,
    ) -> None:
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        self.settings = settings or CrossEncoderSettings("sigmoid" if len(self.labels) == 1 else "identity")
        config = model.encoder.config
        limits = (tokenizer.max_length, self.settings.max_length)
        self.max_length = min([config.max_len, *(limit for limit in limits if limit is not None)])
        self.device, self.precision, self.int8, self.inference_model = prepare_inference(
            model, tokenizer, self.max_length, precision=precision, device=device, int8_weights=int8_weights
        )
        self._use_token_types = config.num_token_types > 1 and tokenizer.has_token_types

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        precision: str = "auto",
        device: str = "auto",
        revision: str | None = None,
    ) -> "Reranker":
        """Load a cross-encoder from a local folder or the Hugging Face Hub: of sentence-transformers or transformers.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, missing or broken files, or a model without a classification head.
        """
        folder = hub.resolve_model(name, revision)
        model, family = checkpoints.load_classifier(folder)
        settings = sentence_transformers.read_cross_encoder_settings(folder, len(model.head_config.labels))
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.encoder.config.vocab_size)
        check_pairs(tokenizer, folder, model.encoder.config.num_token_types)
        with error_context(model=str(name)):
            reranker = cls(
                model, tokenizer, family, settings, precision=precision, device=device, int8_weights=int8_file(folder)
            )
        check_room(folder, tokenizer, reranker.max_length, texts=2)
        reranker.name = str(name)
        return reranker

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that sentence-transformers opens as a CrossEncoder, with the weights in float32."""
        folder = Path(folder)
        self.family.save_with_head(self.model, folder, self.settings.config_keys)
        self.tokenizer.save(folder, self.max_length)
        sentence_transformers.write_cross_encoder_settings(folder, self.settings)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the scores, in the model's order; one for a model that ranks."""
        return self.model.head_config.labels

    def check_ranks(self) -> None:
        """Raise a ValueError if the head has several scores: one is needed to rank documents."""
        if len(self.labels) != 1:
            raise ValueError(
                f"the model {self.name} has {len(self.labels)} scores for a pair ({', '.join(self.labels[:5])}). "
                "Ranking needs a model with one; Reranker.score returns them all"
            )

    def rank(
        self, query: str, documents: Iterable[str], *, top_k: int | None = None, batch_tokens: int | None = None
    ) -> list[RankedDocument]:
        """Rank documents by their relevance to a query.

        Args:
            query: the query.
            documents: the documents. A document that does not fit the model together with the query is truncated, and
                a warning counts them.
            top_k: number of documents to return; None for all.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Returns:
            The documents with the highest scores, highest first; equal scores in the order of the documents.

        Raises:
            ValueError: the query or a document is not a Unicode string or is blank; the query leaves no room for a
                document; the model has several scores; or top_k is below 1.
            NonFiniteError: the logits of a document hold NaN or infinity.
        """
        self.check_query(query)
        texts = check_documents(documents)
        _check_top_k(top_k)
        (ranking,) = self.stream([query], texts, batch_tokens=batch_tokens)
        truncated = {document.index for document in ranking if document.truncated}
        warn_truncated([index in truncated for index in range(len(texts))], self.max_length, "Split them", "document")
        return ranking[:top_k]

    def stream(
        self,
        queries: Iterable[str],
        documents: Iterable[str],
        *,
        top_k: int | None = None,
        batch_tokens: int | None = None,
        on_batch: Callable[[int, int], object] = lambda pairs, tokens: None,
    ) -> Iterator[list[RankedDocument]]:
        """Rank the same documents for each query of a stream, without warnings about truncated documents.

        Args:
            queries: the queries.
            documents, top_k, batch_tokens: as in `rank`.
            on_batch: called after each batch with the number of its pairs and tokens.
        """
        self.check_ranks()
        _check_top_k(top_k)
        texts = check_documents(documents)
        for number, query in enumerate(iterate_texts(queries, "query")):
            self.check_query(query, f"query {number}")
            rows, truncated = self._score([(query, text) for text in texts], batch_tokens, texts.__getitem__, on_batch)
            scores = rows[:, 0].tolist()
            order = sorted(range(len(texts)), key=lambda index: -scores[index])[:top_k]
            yield [RankedDocument(index, scores[index], texts[index], truncated[index]) for index in order]

    def score(self, pairs: Iterable[Pair], *, batch_tokens: int | None = None) -> NDArray[np.float32]:
        """Score pairs of texts, in their order.

        Args:
            pairs: (query, document) pairs. A pair that is longer than the model's limit is truncated, the longer text
                first, and a warning counts them.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Returns:
            Scores (n,) of a model with one label; (n, C) with C labels.

        Raises:
            ValueError: an item is not a pair of Unicode strings, or a text is blank.
            NonFiniteError: the logits of a pair hold NaN or infinity.
        """
        listed = _check_pairs(pairs)
        rows, truncated = self._score(listed, batch_tokens, lambda index: listed[index][1])
        warn_truncated(truncated, self.max_length, "Split them", "pair")
        return rows[:, 0] if len(self.labels) == 1 else rows

    def check_query(self, query: str, name: str = "the query") -> None:
        """Check that a query leaves room for a document.

        Args:
            query: the query.
            name: its name in messages.

        Raises:
            ValueError: it is not a Unicode string, is blank, or is too long for the model.
        """
        if not isinstance(query, str):
            raise ValueError(f"{name} is a {type(query).__name__}; expected a string")
        check_not_blank(query, name)
        special = self.tokenizer.backend.num_special_tokens_to_add(is_pair=True)
        count = len(self.tokenizer.target_ids(self.settings.prompt + query))
        room = self.max_length - special - 1
        if count > room:
            raise ValueError(
                f"{name} has {count} tokens; expected at most {room}, because the model reads query and document as "
                f"one text of {self.max_length} tokens. Shorten it"
            )

    def tokenize(self, pairs: Sequence[Pair]) -> list[PairTokens]:
        """Return the tokens of pairs, with the prompt of the model, truncated to its maximum length."""
        prompt = self.settings.prompt
        return self.tokenizer.encode_pairs([(prompt + first, second) for first, second in pairs], self.max_length)

    def score_tokens(
        self,
        tokens: Sequence[PairTokens],
        batch_tokens: int | None = None,
        on_batch: Callable[[int, int], object] = lambda pairs, tokens: None,
    ) -> NDArray[np.float32]:
        """Return the scores (n, C) of tokenized pairs.

        Args:
            tokens: from `tokenize`.
            batch_tokens: as in `score`.
            on_batch: called after each batch with the number of its pairs and tokens.

        Raises:
            NonFiniteError: the logits of a pair hold NaN or infinity.
        """
        rows = torch.empty(len(tokens), len(self.labels))
        types = [pair.token_types for pair in tokens]

        def decode(index: int) -> str:
            return self.tokenizer.decode(tokens[index].ids)

        self.inference_model.eval()
        check_not_empty(tokens)
        with error_context(text=decode, model=self.name, precision=self.precision.name):
            for batch in packed_batches(tokens, batch_tokens, self.model.encoder.config, self.device):
                token_types = batch.pack_values(types) if self._use_token_types else None
                with torch.inference_mode():
                    hidden, keep = batch.unpack(self.inference_model.encoder(batch.ids, batch.mask, token_types))
                    logits = self.inference_model.logits(hidden, keep).float().cpu()
                check_finite(logits.numpy(), "logits", batch.indices)  # the sigmoid of infinity is finite
                rows[batch.indices] = self._activate(logits)
                on_batch(len(batch.indices), batch.num_tokens)
        return rows.numpy()

    def _activate(self, logits: Tensor) -> Tensor:
        match self.settings.activation:
            case "sigmoid":
                return logits.sigmoid()
            case "tanh":
                return logits.tanh()
            case "identity":
                return logits

    def _score(
        self,
        pairs: Sequence[Pair],
        batch_tokens: int | None,
        text_of: Callable[[int], str],
        on_batch: Callable[[int, int], object] = lambda pairs, tokens: None,
    ) -> tuple[NDArray[np.float32], list[bool]]:
        """Return the scores (n, C) of pairs, and whether each pair was truncated."""
        rows, truncated = [np.empty((0, len(self.labels)), np.float32)], list[bool]()
        with error_context(text=text_of):
            for tokens in prefetch(map(self.tokenize, _chunked(pairs, WINDOW_TEXTS))):
                with error_context(index=len(truncated).__add__):
                    rows.append(self.score_tokens(tokens, batch_tokens, on_batch))
                truncated += [pair.truncated for pair in tokens]
        return np.concatenate(rows), truncated


def check_documents(documents: Iterable[object]) -> list[str]:
    """Return documents as a list.

    Raises:
        ValueError: the argument is a single string or no sequence of texts, or a document is not a Unicode string or
            is blank.

    >>> check_documents(["It rained.", " "])
    Traceback (most recent call last):
    ValueError: document 1 is blank; expected words
    """
    texts = iterate_texts(documents, "document")
    return [check_not_blank(text, f"document {number}") for number, text in enumerate(texts)]


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1; got {top_k}")


def _check_pairs(pairs: Iterable[object]) -> list[Pair]:
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise ValueError(f"expected a list of (query, document) pairs, got {type(pairs).__name__}")
    listed: list[Pair] = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"pair {number} is {pair!r:.60}; expected a query and a document")
        for text, role in zip(pair, ("query", "document"), strict=True):
            if not isinstance(text, str):
                raise ValueError(f"the {role} of pair {number} is a {type(text).__name__}; expected a string")
            check_not_blank(text, f"the {role} of pair {number}")
        listed.append((pair[0], pair[1]))
    return listed


def _chunked(pairs: Sequence[Pair], size: int) -> Iterator[list[Pair]]:
    remaining = iter(pairs)
    while chunk := list(islice(remaining, size)):
        yield chunk
