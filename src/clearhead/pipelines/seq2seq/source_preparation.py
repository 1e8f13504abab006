"""Prepare texts for an encoder–decoder: languages, task prefixes, truncation and forced prefixes of the output."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clearhead.data.sentences import split_by_tokens
from clearhead.generation.config import GenerationConfig
from clearhead.generation.shortlist.shortlist import Shortlist
from clearhead.generation.state import AllowedTokens
from clearhead.generation.strategy import EncodedSource
from clearhead.models.config import Seq2SeqConfig
from clearhead.pipelines.seq2seq.copying import CopyRule, ProtectedText
from clearhead.tokenizers.base import TextTokenizer, check_texts
from clearhead.tokenizers.question_context import ContextOverflowError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedText:
    """A text, ready for the model.

    Args:
        source: its token ids, and the first ids of its target.
        prefix_ids: ids of the forced prefix.
        forced_prefix: the forced prefix as a string.
        truncated: whether the text was longer than the model's limit.
        empty: whether the text has nothing to translate: it is blank, or is copied as a whole.
        protected: the text, with placeholders for the spans that are copied.
    """

    source: EncodedSource
    prefix_ids: tuple[int, ...]
    forced_prefix: str
    truncated: bool
    empty: bool
    protected: ProtectedText


@dataclass(frozen=True)
class SourcePreparation:
    """Turn texts into token ids for a model.

    Args:
        tokenizer: the model's tokenizer.
        model_config: the model's config.
        max_length: longest source in tokens; None for no limit.
        task_prefix: prefix of every source, such as "summarize: ".
        shortlist: the tokens that may translate each source token; None for all.
        copy_rule: how to copy parts of the source to the output; None to copy nothing.
        direction: source and target language of a model for one direction, if they are known.
    """

    tokenizer: TextTokenizer
    model_config: Seq2SeqConfig
    max_length: int | None
    task_prefix: str
    shortlist: Shortlist | None = None
    copy_rule: CopyRule | None = None
    direction: tuple[str, str] | None = None

    @property
    def target_vocab_size(self) -> int:
        """Number of tokens in the target's vocabulary."""
        return self.model_config.target_vocab_size or self.model_config.vocab_size

    def prepare(
        self,
        texts: Sequence[str],
        config: GenerationConfig,
        source_lang: str | None,
        target_lang: str | None,
        prefixes: Sequence[str] | None,
        *,
        numbers: bool = False,
    ) -> tuple[GenerationConfig, list[PreparedText]]:
        """Tokenize texts.

        Args:
            texts: the texts.
            config: the generation config.
            source_lang, target_lang: languages, for models that require them.
            prefixes: forced prefix of each output; "" for none. None for no prefixes. A text with one is not protected.
            numbers: whether to copy all numbers in digits.

        Returns:
            The config, with a forced first token if the target language requires it, and the texts.

        Raises:
            ValueError: a text that is not a string, or a language that the model does not support.
        """
        texts = check_texts(texts)
        prefixes = [""] * len(texts) if prefixes is None else check_texts(prefixes)
        tokenizer, start_id, config = self.set_languages(config, texts, source_lang, target_lang)
        protected = [
            ProtectedText(text) if self.copy_rule is None or prefix else self.copy_rule.protect(text, numbers=numbers)
            for text, prefix in zip(texts, prefixes, strict=True)
        ]
        encoded = tokenizer.encode([self.task_prefix + text.core for text in protected], self.max_length)
        allowed: Sequence[AllowedTokens | None] = [None] * len(texts)
        if self.shortlist is not None:
            allowed = self.shortlist.allowed([tokens.ids for tokens in encoded])
        prepared = []
        for text, tokens, prefix, allowed_tokens in zip(protected, encoded, prefixes, allowed, strict=True):
            prefix_ids = tuple(self.tokenizer.target_ids(prefix)) if prefix else ()
            # a forced first token, such as the language, comes before the prefix
            first = () if config.forced_bos_token_id is None or not prefix_ids else (config.forced_bos_token_id,)
            source = EncodedSource(tokens.ids, (start_id, *first, *prefix_ids), allowed_tokens)
            prepared.append(PreparedText(source, prefix_ids, prefix, tokens.truncated, not text.core.strip(), text))
        return config, prepared

    def set_languages(
        self, config: GenerationConfig, texts: Sequence[str], source_lang: str | None, target_lang: str | None
    ) -> tuple[TextTokenizer, int, GenerationConfig]:
        """Return the tokenizer for the languages, the target's start id, and the config with a forced language.

        Raises:
            ValueError: a language that the model does not support, or no language where the model requires one.
        """
        start_id = self.model_config.start_id if config.start_id is None else config.start_id
        tokenizer = self.tokenizer
        if self.direction is not None:
            own_source, own_target = self.direction
            if source_lang not in (None, own_source) or target_lang not in (None, own_target):
                given = f"source_lang={source_lang!r} and target_lang={target_lang!r}"
                raise ValueError(f"this model translates from {own_source!r} to {own_target!r}; got {given}")
            source_lang = target_lang = None
        if source_lang is None and target_lang is None and not self._requires_language(config, start_id, texts):
            return tokenizer, start_id, config
        configured = tokenizer.for_languages(source_lang, target_lang)
        start_id = start_id if configured.start_id is None else configured.start_id
        # a model that takes its target language elsewhere keeps the token that its config forces
        forced = configured.forced_bos_token_id
        config = config if forced is None else replace(config, forced_bos_token_id=forced)
        return configured.tokenizer, start_id, config

    def _requires_language(self, config: GenerationConfig, start_id: int, texts: Sequence[str]) -> bool:
        """Return whether the target language is still unknown: not in the config, the start token or every text."""
        languages = self.tokenizer.languages
        if not languages or config.forced_bos_token_id is not None:
            return False
        if self.tokenizer.ids_to_tokens([start_id])[0] in languages:
            return False
        named = (any(text.startswith(f">>{code}<<") for code in languages) for text in texts if text.strip())
        return not all(named)

    def split(self, text: str, prefix: str, max_length: int | None) -> list[str]:
        """Split a text into parts that fit the model; arguments and errors as in `TextToText.split_document`."""

        def count(texts: Sequence[str]) -> list[int]:
            return [len(tokens.ids) for tokens in self.tokenizer.encode(texts)]

        if not text.strip():
            return []
        limit = self.max_length if max_length is None else max_length
        whole_prefix = self.task_prefix + prefix
        if limit is None or count([whole_prefix + text])[0] <= limit:
            return [prefix + text]
        (prefix_tokens,) = count([whole_prefix])
        if prefix_tokens >= limit:
            raise ContextOverflowError(
                f"the prefix has {prefix_tokens} tokens, and leaves no room for a text within {limit} tokens"
            )
        return [prefix + part for part in split_by_tokens(text, count, limit - prefix_tokens)]

    def check(
        self, text: PreparedText, label: str, config: GenerationConfig, *, strict: bool, truncation: bool = True
    ) -> None:
        """Check that a text fits the model, and warn if it was truncated or its prefix cannot be tokenized.

        Args:
            text: the text.
            label: name of the text in messages, such as "text 3".
            config: the generation config.
            strict: raise an error instead of a warning.
            truncation: whether to report truncation.

        Raises:
            ValueError: with `strict`, in place of a warning; also if the prefix leaves no room for a new token, or a
                token id of the config is outside the vocabulary.
        """
        try:
            config.check_ids(self.target_vocab_size)
            config.max_target_length(len(text.source.decoder_prefix), self.model_config.max_len)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None
        problems = []
        if truncation and text.truncated:
            limit = f"{label} is longer than the {self.max_length} tokens that this model takes"
            problems.append((limit, "it was truncated"))
        decoded = self.tokenizer.decode(text.prefix_ids)
        if decoded.split() != text.forced_prefix.split():
            unknown = f"{label}: the model's tokenizer cannot write the prefix {text.forced_prefix!r}"
            problems.append((unknown, f"it became {decoded!r}"))
        for problem, consequence in problems:
            if strict:
                raise ValueError(problem)
            log.warning("%s: %s", problem, consequence)
