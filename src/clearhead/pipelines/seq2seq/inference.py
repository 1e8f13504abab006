"""Run an encoder–decoder on texts: tokenize, generate, decode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from clearhead.finite import error_context
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate, stream
from clearhead.generation.state import GenerationModel, Hypothesis
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.pipelines.seq2seq.copying import CopyRule, without_placeholders
from clearhead.pipelines.seq2seq.outputs import (
    Generated,
    StreamedToken,
    chain_streams,
    copied_output,
    decode_hypotheses,
    join_outputs,
    streamed_tokens,
)
from clearhead.pipelines.seq2seq.source_preparation import PreparedText, SourcePreparation

OnBatch = Callable[[int, int], object]
"""Called after each batch with the number of its texts and of their new tokens."""


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
        on_batch: OnBatch = lambda texts, tokens: None,
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
        outputs = {index: copied_output(text) for index, text in enumerate(prepared) if text.empty}
        whole = {index: prepared[index] for index in filled if not prepared[index].protected.split}
        with self._name_text(texts, first):
            outputs |= self._search(whole, config, on_batch)
            rest = {index: texts[index] for index in filled if index not in outputs}
            if rest:
                on_batch(len(filled) - len(whole), 0)
                outputs |= self._retry(rest, config, languages, lambda _, tokens: on_batch(0, tokens))
        return [outputs[index] for index in range(len(texts))]

    def _search(
        self, prepared: Mapping[int, PreparedText], config: GenerationConfig, on_batch: OnBatch
    ) -> dict[int, Generated]:
        """Return the outputs of texts by index, without those that lose a number or a copied span."""
        indices = list(prepared)
        with error_context(index=indices.__getitem__):
            hypotheses = generate(self.model, [prepared[index].source for index in indices], config, on_batch)
        outputs = {}
        for index, own in zip(indices, hypotheses, strict=True):
            output, protected = self._decode(prepared[index], own, config), prepared[index].protected
            # the rest of a text that was cut is lost, and reported
            if not output.complete or output.truncated or not protected.loses(output.text):
                outputs[index] = output.with_texts(protected.restore)
        return outputs

    def _retry(
        self,
        texts: Mapping[int, str],
        config: GenerationConfig,
        languages: tuple[str | None, str | None],
        on_batch: OnBatch,
    ) -> dict[int, Generated]:
        """Return the outputs of texts that lost something: with placeholders for numbers, or else in pieces."""
        rule = self.preparation.copy_rule
        assert rule is not None
        outputs: dict[int, Generated] = {}
        numbered = [index for index, text in texts.items() if any(map(str.isdigit, text))]
        if rule.has_placeholders and numbered:
            sources = [texts[index] for index in numbered]
            _, prepared = self.preparation.prepare(sources, config, *languages, None, numbers=True)
            own = {index: text for index, text in zip(numbered, prepared, strict=True) if not text.protected.split}
            outputs |= self._search(own, config, on_batch)
        left = {index: text for index, text in texts.items() if index not in outputs}
        return outputs | self._translate_pieces(left, rule, config, languages, on_batch)

    def _translate_pieces(
        self,
        texts: Mapping[int, str],
        rule: CopyRule,
        config: GenerationConfig,
        languages: tuple[str | None, str | None],
        on_batch: OnBatch,
    ) -> dict[int, Generated]:
        """Return the outputs of texts whose pieces between copied spans are translated one by one."""
        pieces = {index: rule.pieces(text) for index, text in texts.items()}
        texts_of = [(index, piece.text) for index, own in pieces.items() for piece in own if not piece.is_copied]
        _, prepared = replace(self.preparation, copy_rule=None).prepare(
            [text for _, text in texts_of], config, *languages, None
        )
        with error_context(index=lambda number: texts_of[number][0]):
            found = self._search(dict(enumerate(prepared)), config, on_batch)
        outputs: dict[int, list[Generated]] = {index: [] for index in texts}
        for number, (index, _) in enumerate(texts_of):
            outputs[index].append(found[number].with_texts(without_placeholders))
        return {index: join_outputs(own, outputs[index], config.length_penalty) for index, own in pieces.items()}

    def stream(
        self,
        text: str,
        prepared: PreparedText,
        config: GenerationConfig,
        languages: tuple[str | None, str | None],
        strict: bool,
    ) -> Iterator[StreamedToken]:
        """Yield the tokens of a text's output one by one.

        A stream cannot be repeated: a placeholder that the model loses is appended to the last token's text.

        Args:
            text: the text, for errors.
            prepared: the same text, prepared.
            config, languages, strict: as in `generate`.
        """
        self.preparation.check(prepared, "the text", config, strict=strict)
        rule = self.preparation.copy_rule
        parts: list[PreparedText | str] = [prepared]
        if prepared.protected.split and rule is not None:
            plain = replace(self.preparation, copy_rule=None)
            parts = [
                piece.text if piece.is_copied else plain.prepare([piece.text], config, *languages, None)[1][0]
                for piece in rule.pieces(text)
            ]
        streams = (part if isinstance(part, str) else self._stream_part(text, part, config) for part in parts)
        yield from chain_streams(streams)

    def _stream_part(self, text: str, prepared: PreparedText, config: GenerationConfig) -> Iterator[StreamedToken]:
        tokens = stream(self.model, [prepared.source], config)
        streamed = streamed_tokens(tokens, prepared, self.preparation.tokenizer)
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
