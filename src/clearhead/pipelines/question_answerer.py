"""Extractive question answering: the answer is a span of the context."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.finite import check_finite, error_context
from clearhead.io import hub
from clearhead.models.heads import SpanClassifier
from clearhead.pipelines.answering.answers import Answer, BaseQuestionAnswerer, SpanSearchConfig
from clearhead.pipelines.answering.generative_question_answerer import GenerativeQuestionAnswerer
from clearhead.pipelines.answering.span_search import Logits, best_answer
from clearhead.pipelines.base import Pipeline, check_room, prepare_inference
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.int8.files import int8_file
from clearhead.runtime.packed_batch import packed_batches
from clearhead.runtime.progress import token_progress
from clearhead.tokenizers.auto import check_pairs, check_vocabulary
from clearhead.tokenizers.base import Tokens
from clearhead.tokenizers.question_context import PairWindow, pair_windows
from clearhead.tokenizers.tokenizer import Tokenizer

WINDOW_LENGTH = 384
"""Default number of tokens in a window, as in the training of extractive models (Devlin et al. 2018, their code)."""

_PAIRS = 256
"""Number of pairs that are sorted by length and computed together."""


class QuestionAnswerer(Pipeline[SpanClassifier], BaseQuestionAnswerer):
    """An encoder with a span head, which marks the answer to a question in a context.

    Equation: P(i, j) = softmax(s)_i softmax(e)_j, i ≤ j; no answer: P([CLS], [CLS])
    Source: Devlin et al. 2018, "BERT", Sections 4.2 and 4.3

    Args:
        model: the encoder with its head, in float32.
        tokenizer: its tokenizer.
        family: the checkpoint family for `save_pretrained`.
        precision: "float32", "bfloat16", "int8", or "auto", the fastest accurate one on this processor.
        device: "auto", "cpu", "cuda" ...
        int8_weights: as in `TextEncoder`.

    >>> from clearhead import QuestionAnswerer
    >>> reader = QuestionAnswerer.from_pretrained("my-reader")  # doctest: +SKIP
    >>> reader.answer("What was closed?", "The old bridge was closed after the storm.").text  # doctest: +SKIP
    'The old bridge'
    """

    def __init__(
        self,
        model: SpanClassifier,
        tokenizer: Tokenizer,
        family: EncoderFamily,
        *,
        precision: str = "float32",
        device: str = "auto",
        int8_weights: Path | None = None,
    ) -> None:
        super().__init__()
        if len(model.head_config.labels) != 2:
            raise ValueError(
                f"a span head has two outputs, start and end; this one has {len(model.head_config.labels)}"
            )
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        config = model.encoder.config
        self.max_length = min(tokenizer.max_length or config.max_len, config.max_len)
        self.device, self.precision, self.int8, self.inference_model = prepare_inference(
            model, tokenizer, self.max_length, precision=precision, device=device, int8_weights=int8_weights
        )
        self._use_token_types = config.num_token_types > 1 and tokenizer.has_token_types

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        precision: str = "float32",
        device: str = "auto",
        revision: str | None = None,
    ) -> "QuestionAnswerer | GenerativeQuestionAnswerer":
        """Load a model from a local folder or the Hugging Face Hub.

        An encoder–decoder is loaded as a `GenerativeQuestionAnswerer`, which writes its answers.

        Args:
            name: a folder or a Hub id.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.

        Raises:
            ValueError: no such model, missing or broken files, or a model without a span head.
        """
        folder = hub.resolve_model(name, revision)
        if checkpoints.checkpoint_type(folder) == "seq2seq":
            generator = TextToText.from_pretrained(folder, precision=precision, device=device)
            generator.name = str(name)
            return GenerativeQuestionAnswerer(generator)
        reader = cls.from_folder(folder, precision=precision, device=device)
        reader.name = str(name)
        return reader

    @classmethod
    def from_folder(cls, folder: Path, *, precision: str = "float32", device: str = "auto") -> "QuestionAnswerer":
        """Load an encoder with a span head from a local folder; arguments and errors as in `from_pretrained`."""
        model, family = checkpoints.load_span_classifier(folder)
        tokenizer = check_vocabulary(Tokenizer.from_folder(folder), folder, model.encoder.config.vocab_size)
        check_pairs(tokenizer, folder, model.encoder.config.num_token_types)
        with error_context(model=str(folder)):
            reader = cls(model, tokenizer, family, precision=precision, device=device, int8_weights=int8_file(folder))
        check_room(folder, tokenizer, reader.max_length, texts=2)
        reader.name = str(folder)
        return reader

    def save_pretrained(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.family.save_with_head(self.model, folder)
        self.tokenizer.save(folder, self.max_length)

    def answers(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        n_best: int = 1,
        allow_no_answer: bool = False,
        no_answer_threshold: float = 0.0,
        max_answer_length: int = 30,
        max_length: int | None = None,
        stride: int = 128,
        batch_tokens: int | None = None,
        show_progress: bool = False,
    ) -> list[Answer]:
        if max_length is not None and max_length > self.max_length:
            raise ValueError(f"max_length is {max_length}, but this model takes at most {self.max_length} tokens")
        length = min(WINDOW_LENGTH, self.max_length) if max_length is None else max_length
        config = SpanSearchConfig(n_best, allow_no_answer, no_answer_threshold, max_answer_length, length, stride)
        total = len(pairs) if isinstance(pairs, Sequence) else None
        remaining, answers = iter(pairs), list[Answer]()
        with token_progress(total, show_progress) as on_step:
            while chunk := list(islice(remaining, _PAIRS)):
                windows = pair_windows(self.tokenizer, chunk, length, stride, first_number=len(answers))
                pair_of_window = [pair for pair, own in enumerate(windows, len(answers)) for _ in own]
                questions = [chunk[pair - len(answers)][0] for pair in pair_of_window]
                with error_context(index=pair_of_window.__getitem__, text=questions.__getitem__):
                    logits = iter(self.span_logits([window for own in windows for window in own], batch_tokens))
                for (_, context), own in zip(chunk, windows, strict=True):
                    answers.append(best_answer(context, own, list(islice(logits, len(own))), config))
                on_step(len(chunk), sum(len(window.ids) for own in windows for window in own))
        return answers

    def span_logits(
        self, windows: Sequence[PairWindow], batch_tokens: int | None = None
    ) -> list[tuple[Logits, Logits]]:
        """Return the start and end logits of each window: of [CLS], then of the context's tokens.

        Args:
            windows: the windows.
            batch_tokens: number of tokens in a batch; None for the default of the device.

        Raises:
            NonFiniteError: the logits of a window hold NaN or infinity.
        """
        logits = [(np.empty(0), np.empty(0))] * len(windows)
        token_types = [window.token_types for window in windows]
        tokens = [Tokens(window.ids, truncated=False) for window in windows]

        def decode(index: int) -> str:
            return self.tokenizer.decode(windows[index].ids)

        self.inference_model.eval()
        with error_context(text=decode, model=self.name, precision=self.precision.name):
            for batch in packed_batches(tokens, batch_tokens, self.model.encoder.config, self.device):
                types = batch.pack_values(token_types) if self._use_token_types else None
                with torch.inference_mode():
                    both = self.inference_model(batch.ids, batch.mask, types)
                starts, ends = (part[0, : batch.num_tokens].double().cpu().split(batch.lengths) for part in both)
                for index, start, end in zip(batch.indices, starts, ends, strict=True):
                    window = windows[index]
                    positions = [0, *range(window.context_start, window.context_start + len(window.offsets))]
                    logits[index] = start[positions].numpy(), end[positions].numpy()
                    check_finite(np.stack(logits[index])[None], "logits", [index])
        return logits
