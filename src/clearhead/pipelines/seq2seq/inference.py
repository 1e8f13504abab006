"""Run an encoder–decoder on texts: tokenize, generate, decode."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from clearhead.finite import error_context
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate, stream
from clearhead.generation.state import GenerationModel, Hypothesis
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.pipelines.seq2seq.outputs import EMPTY, Generated, StreamedToken, decode_hypotheses, streamed_tokens
from clearhead.pipelines.seq2seq.source_preparation import PreparedText, SourcePreparation


@dataclass(frozen=True)
class Seq2SeqInference:
    """Generate outputs for a batch of texts, or the tokens of one output.

    Args:
        model: the model that computes.
        preparation: turns texts into token ids.
        name, precision: name and precision of the model in errors.
    """

    model: GenerationModel
    preparation: SourcePreparation
    name: str
    precision: str

    def generate(
        self,
        texts: Sequence[str],
        config: GenerationConfig,
        languages: tuple[str | None, str | None],
        prefixes: Sequence[str] | None,
        strict: bool,
        first: int = 0,
        label: Callable[[int], str] | None = None,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
    ) -> list[Generated]:
        """Return the outputs of texts, in their order.

        Args:
            texts, prefixes, strict: as in `TextToText.generate`.
            config: the generation config.
            languages: source and target language.
            first: index of the first text in messages.
            label: returns the name of a text in messages, from its index. With a label, each truncated text is
                reported.
            on_batch: called after each batch with the number of its texts and of their new tokens.
        """
        config, prepared = self.preparation.prepare(texts, config, *languages, prefixes)
        filled = [index for index, text in enumerate(prepared) if not text.empty]
        for index in filled:
            name = (label or "text {}".format)(first + index)
            self.preparation.check(prepared[index], name, config, strict=strict, truncation=strict or label is not None)
        with self._name_text(texts, first), error_context(index=filled.__getitem__):
            sources = [prepared[index].source for index in filled]
            hypotheses = iter(generate(self.model, sources, config, on_batch))
        return [EMPTY if text.empty else self._decode(text, next(hypotheses), config) for text in prepared]

    def stream(
        self, text: str, prepared: PreparedText, config: GenerationConfig, strict: bool
    ) -> Iterator[StreamedToken]:
        """Yield the tokens of a text's output one by one.

        Args:
            text: the text, for errors.
            prepared: the same text, prepared.
            config, strict: as in `generate`.
        """
        self.preparation.check(prepared, "the text", config, strict=strict)
        tokens = stream(self.model, [prepared.source], config)
        streamed = streamed_tokens(tokens, prepared.prefix_ids, self.preparation.tokenizer)
        while True:
            with self._name_text([text]):
                token = next(streamed, None)
            if token is None:
                return
            yield token

    def _name_text(self, texts: Sequence[str], first: int = 0) -> AbstractContextManager[None]:
        """Name the text, its index and this model in a `NonFiniteError`."""
        return error_context(index=first.__add__, text=texts.__getitem__, model=self.name, precision=self.precision)

    def _decode(self, text: PreparedText, hypotheses: Sequence[Hypothesis], config: GenerationConfig) -> Generated:
        """Return the best hypothesis of a text as a `Generated`, with all of them in `n_best`."""
        prefix_length = len(text.source.decoder_prefix)
        max_length = config.max_target_length(prefix_length, self.preparation.model_config.max_len)
        return decode_hypotheses(
            hypotheses,
            text,
            self.preparation.tokenizer,
            eos_ids=resolve_eos_ids(self.model, config),
            forced_length=max_length - prefix_length if config.forced_eos_token_id else None,
        )
