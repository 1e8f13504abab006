"""Encode texts as vectors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints import sentence_transformers
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.checkpoints.sentence_transformers import SentenceSettings
from clearhead.choices import check_choice, hide_keywords, refuse_unknown
from clearhead.finite import error_context
from clearhead.io import hub
from clearhead.models.config import POOLINGS, Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.pipelines.base import check_room, prepare_inference, warn_truncated
from clearhead.pipelines.encoding.comparison import Texts, VectorComparison
from clearhead.pipelines.encoding.keywords import (
    ENCODE_HINTS,
    EncodeKeywords,
    check_vector_precision,
    choose_batch_tokens,
    choose_normalization,
    choose_prompt,
)
from clearhead.pipelines.encoding.mteb import encode_batches, model_metadata
from clearhead.pipelines.encoding.prompts import count_prompt_tokens, prompted_tokens
from clearhead.pipelines.encoding.quantization import VectorPrecision, quantize_vectors
from clearhead.runtime.int8.files import int8_file
from clearhead.runtime.packed_batch import default_batch_tokens, hidden_states
from clearhead.runtime.process import trim_memory
from clearhead.runtime.progress import token_progress
from clearhead.runtime.streaming import WINDOW_TEXTS, chunked, prefetch
from clearhead.runtime.vectors import (
    EncodedBatch,
    EncodeOptions,
    Vectors,
    pooled_vectors,
    token_vectors,
    vector_width,
)
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import Tokens, as_texts, check_texts
from clearhead.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from mteb.models import ModelMeta


class TextEncoder(VectorComparison):
    """An encoder with its tokenizer and pooling, from texts to vectors.

    Args:
        model: the encoder, in float32.
        tokenizer: its tokenizer.
        settings: pooling, normalization, maximum length, prompts.
        family: the checkpoint family for `save_pretrained`.
        precision: "float32", "bfloat16", "int8", or "auto", the fastest accurate one on this processor.
        device: "auto", "cpu", "cuda", "cuda:1", "mps" ...
        int8_weights: file of 8-bit weights, written by `clearhead quantize`; without it, precision "int8" makes them.
        compile: whether to compile a part of each layer with inductor, which was not faster on measured processors.

    Raises:
        ValueError: a device that is not available, an unknown precision. With `compile`, a precision that cannot be
            compiled, or no C++ compiler.

    >>> from clearhead import TextEncoder
    >>> TextEncoder.from_pretrained(precision="float32", device="cpu")
    TextEncoder('all-MiniLM-L6-v2', 22.7M parameters, float32, cpu)
    """

    def __init__(
        self,
        model: EncoderModel,
        tokenizer: Tokenizer,
        settings: SentenceSettings,
        family: EncoderFamily,
        *,
        precision: str = "auto",
        device: str = "auto",
        int8_weights: Path | None = None,
        compile: bool = False,
    ) -> None:
        lengths = [length for length in (settings.max_length, tokenizer.max_length) if length is not None][:1]
        self.model, self.tokenizer, self.family, self.compile = model, tokenizer, family, compile
        self.name = f"of type {family.model_type}"
        self.revision: str | None = None
        self.adapter: str | None = None
        self.settings = replace(settings, max_length=min([*lengths, model.config.max_len]))
        self.device, self.precision, self.int8, self.inference_model = prepare_inference(
            model,
            tokenizer,
            self.settings.max_length,
            precision=precision,
            device=device,
            int8_weights=int8_weights,
            compile=compile,
        )

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = hub.DEFAULT_MODEL,
        *,
        precision: str = "auto",
        device: str = "auto",
        compile: bool = False,
        revision: str | None = None,
        adapter: str | None = None,
    ) -> "TextEncoder":
        """Load a text encoder from a local folder or the Hugging Face Hub.

        Args:
            name: a folder, a Hub id, or "all-MiniLM-L6-v2", the default.
            precision, device, compile: as in the class.
            revision: branch, tag or commit, for a Hub id.
            adapter: the task whose low-rank adapter is merged into the weights, such as "retrieval.query" of
                jina-embeddings-v3. Its prompt becomes the default prompt. None for no adapter.

        Raises:
            ValueError: no such model or adapter, missing or broken files, or an architecture or option that is not
                supported.
        """
        folder = hub.resolve_model(name, revision)
        model, family = checkpoints.load_encoder(folder, adapter=adapter)
        with error_context(model=str(name)):
            encoder = cls(
                model,
                check_vocabulary(Tokenizer.from_folder(folder), folder, model.config.vocab_size),
                sentence_transformers.read_settings(folder, adapter),
                family,
                precision=precision,
                device=device,
                int8_weights=int8_file(folder) if adapter is None else None,
                compile=compile,
            )
        check_room(folder, encoder.tokenizer, encoder.settings.max_length)
        encoder.name, encoder.revision, encoder.adapter = str(name), hub.revision_of(folder), adapter
        return encoder

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that transformers and sentence-transformers open, with the weights in float32."""
        folder = Path(folder)
        self.family.save(self.model, folder)
        self.tokenizer.save(folder, self.settings.max_length)
        sentence_transformers.write_settings(folder, self.settings, self.model.config.d_model)

    def width(self, truncate_dim: int | None = None) -> int:
        """Return the number of columns of a vector.

        Raises:
            ValueError: truncate_dim is below 1 or above the model's width.
        """
        return vector_width(self.model.config.d_model, truncate_dim)

    def tokenize(
        self, texts: Sequence[str], *, max_length: int | None = None, prompt: str | None = None
    ) -> list[Tokens]:
        """Return the token ids of texts, with the prompt and truncated; arguments as in `encode`."""
        limit = self._limit(max_length)
        return prompted_tokens(self.tokenizer, check_texts(texts), self.settings.prompt_text(prompt), limit)

    @overload
    def encode(self, texts: Texts, *, pooling: Pooling | None = None, **options: Unpack[EncodeKeywords]) -> Vectors: ...
    @overload
    def encode(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self, texts: str, *, pooling: Literal["tokens"], **options: Unpack[EncodeKeywords]
    ) -> Vectors: ...
    @overload
    def encode(
        self, texts: Iterable[str], *, pooling: Literal["tokens"], **options: Unpack[EncodeKeywords]
    ) -> list[Vectors]: ...
    @overload
    def encode(
        self,
        texts: Texts,
        *,
        pooling: Pooling | None = None,
        precision: VectorPrecision | None = "float32",
        convert_to_tensor: Literal[True],
        **options: Unpack[EncodeKeywords],
    ) -> Tensor: ...
    @overload
    def encode(
        self,
        texts: Texts,
        *,
        pooling: Pooling | None = None,
        precision: VectorPrecision | None,
        **options: Unpack[EncodeKeywords],
    ) -> NDArray[Any]: ...
    @hide_keywords
    def encode(
        self,
        texts: Texts,
        *,
        pooling: Pooling | Literal["tokens"] | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        show_progress: bool = False,
        precision: str | None = "float32",
        prompt_name: str | None = None,
        batch_size: int | None = None,
        normalize_embeddings: bool = False,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **unknown: object,
    ) -> NDArray[Any] | list[Vectors] | Tensor | list[Tensor]:
        """Encode each text as one vector, in the order of the texts.

        Args:
            texts: a text, or texts in a list, tuple, NumPy array, pandas Series, generator ...; an empty text has a
                vector too.
            pooling: "mean", "cls", "max", or "tokens" for one vector per token; None for the model's pooling.
            normalize: whether to scale vectors to length 1; None for the model's setting, which does not apply to
                the vectors of tokens.
            max_length: maximum number of tokens of a text, including special tokens; longer texts are truncated, and
                a warning counts them. None for the model's limit.
            batch_tokens: number of tokens in a batch; None for the default of the device. More is not faster.
            prompt: name of one of the model's prompts, or a text that is put before each text; None for the model's
                default prompt.
            truncate_dim: number of columns to keep, before normalization, for models trained for it.
            show_progress: show a progress bar on standard error.
            precision: precision of the result, as in `quantize_vectors`: "float32", "int8", "uint8", "binary" or
                "ubinary". The precision of the computation is an argument of `from_pretrained`.
            prompt_name: keyword of sentence-transformers: name of one of the model's prompts.
            batch_size: keyword of sentence-transformers: a batch holds at most the tokens of this many texts of
                maximum length. Results do not depend on it.
            normalize_embeddings: keyword of sentence-transformers: True is normalize=True.
            show_progress_bar: keyword of sentence-transformers: as show_progress.
            convert_to_numpy, convert_to_tensor: keywords of sentence-transformers: return an array (the default), a
                tensor, or a list of tensors if both are False.

        Returns:
            (n, d), or (d,) for a single text; for "tokens" a list of (length, d), or one (length, d). float32, unless
            `precision` is another.

        Raises:
            ValueError: an option out of range, a prompt that leaves no room for a text, or a text that is not a
                Unicode string.
            TypeError: an unknown option.
            NonFiniteError: a vector holds NaN or infinity, or its norm overflows.

        >>> from clearhead import TextEncoder
        >>> encoder = TextEncoder.from_pretrained()
        >>> encoder.encode("Hello, world").shape, encoder.encode(["Hello", "Hi"]).shape
        ((384,), (2, 384))
        """
        if "task_metadata" in unknown:  # mteb passes batches of texts
            given = {"precision": precision, "batch_size": batch_size, "show_progress_bar": show_progress_bar}
            return encode_batches(self, texts, **unknown, **given)  # type: ignore[arg-type]
        known = ("pooling", "precision", "convert_to_tensor", *EncodeKeywords.__annotations__)
        refuse_unknown("encode", unknown, known, ENCODE_HINTS)
        listed, single = as_texts(texts)
        if convert_to_tensor and pooling == "tokens":
            raise ValueError('convert_to_tensor needs one vector per text; pooling="tokens" gives a list of arrays')
        limit = self._limit(max_length)
        batch_tokens = choose_batch_tokens(batch_tokens, batch_size, limit, default_batch_tokens(self.device))
        normalize = choose_normalization(normalize, normalize_embeddings)
        prompt = choose_prompt(self.settings.prompts, prompt, prompt_name)
        vector_precision = check_vector_precision(precision, pooling)
        options = EncodeOptions(pooling, normalize, max_length, batch_tokens, prompt, truncate_dim)
        tokens = self.tokenize(listed, max_length=max_length, prompt=prompt)
        warn_truncated([text.truncated for text in tokens], limit, self._how_to_avoid_truncation(limit))
        total = sum(len(text.ids) for text in tokens)
        with (
            token_progress(total, show_progress or bool(show_progress_bar)) as on_step,
            error_context(text=listed.__getitem__),
        ):
            vectors = self.encode_tokens(tokens, options, lambda texts, count: on_step(count, count, texts))
        if isinstance(vectors, np.ndarray):
            vectors = quantize_vectors(vectors, vector_precision)
        result = vectors[0] if single else vectors
        if convert_to_tensor or (single and not convert_to_numpy):
            return torch.from_numpy(result)
        return result if convert_to_numpy else [torch.from_numpy(vector) for vector in result]

    @property
    def mteb_model_meta(self) -> "ModelMeta":
        """Description of the model for mteb, whose `evaluate` takes a text encoder as its model."""
        return model_metadata(self)

    def _limit(self, max_length: int | None) -> int:
        """Return the maximum number of tokens of a text."""
        limit = cast(int, self.settings.max_length) if max_length is None else max_length
        if limit > self.model.config.max_len:
            raise ValueError(f"max_length is {limit}, but this model takes at most {self.model.config.max_len} tokens")
        return limit

    def _how_to_avoid_truncation(self, limit: int) -> str:
        longest = self.model.config.max_len
        return "Split them" + (f", or set max_length (up to {longest})" if limit < longest else "")

    def stream(
        self,
        texts: Iterable[str],
        options: EncodeOptions | None = None,
        *,
        window: int = WINDOW_TEXTS,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
    ) -> Iterator[EncodedBatch]:
        """Encode a stream of texts, which is never held in memory as a whole.

        The texts are computed in windows. Each window depends on the position of its texts in the stream only, and is
        read and tokenized while the one before it is computed.

        Args:
            texts: any iterable of strings.
            options: arguments of `encode`; pooling "tokens" is not supported.
            window: number of texts in a window.
            on_batch: called after each batch of a window with the number of its texts and tokens.

        Yields:
            The vectors of a window, in the order of the texts.

        Raises:
            NonFiniteError: as in `encode`.
        """
        options = options or EncodeOptions()
        if options.pooling == "tokens":
            raise ValueError("a stream has one vector for each text; use encode() for pooling='tokens'")

        def tokenized() -> Iterator[tuple[list[str], list[Tokens]]]:
            for chunk in chunked(texts, window):
                yield chunk, self.tokenize(chunk, max_length=options.max_length, prompt=options.prompt)

        done = 0
        for chunk, tokens in prefetch(tokenized()):
            with error_context(index=done.__add__, text=chunk.__getitem__):
                vectors = cast(Vectors, self.encode_tokens(tokens, options, on_batch))
            done += len(chunk)
            trim_memory()
            num_tokens, num_truncated = sum(len(text.ids) for text in tokens), sum(text.truncated for text in tokens)
            yield EncodedBatch(chunk, vectors, num_tokens, num_truncated)

    def encode_tokens(
        self,
        tokens: Sequence[Tokens],
        options: EncodeOptions | None = None,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
    ) -> Vectors | list[Vectors]:
        """Encode tokenized texts, as `encode`.

        Args:
            tokens: texts from `tokenize`.
            options: arguments of `encode`.
            on_batch: called after each batch with the number of its texts and tokens.

        Raises:
            NonFiniteError: as in `encode`.
        """
        options, settings = options or EncodeOptions(), self.settings
        pooling = settings.pooling if options.pooling is None else options.pooling
        check_choice("pooling", pooling, (*POOLINGS, "tokens"))
        # a model that normalizes the vectors of texts does not normalize those of tokens
        default = settings.normalize and pooling != "tokens"
        normalize = default if options.normalize is None else options.normalize
        width = self.width(options.truncate_dim)
        skip = 0
        if not settings.pool_prompt and pooling != "tokens":
            skip = count_prompt_tokens(self.tokenizer, settings.prompt_text(options.prompt))

        def decode(index: int) -> str:
            return self.tokenizer.decode(tokens[index].ids)

        batches = hidden_states(
            self.inference_model, tokens, options.batch_tokens, self.model.config, self.device, on_batch
        )
        with error_context(text=decode, model=self.name, precision=self.precision.name):
            if pooling == "tokens":
                return token_vectors(batches, len(tokens), width, normalize=normalize)
            return pooled_vectors(batches, len(tokens), width, pooling, normalize=normalize, skip=skip)
