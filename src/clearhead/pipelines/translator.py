"""Translate between English and German with the models of the package, in the direction that each text requires."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Unpack

from clearhead.finite import error_context
from clearhead.generation.config import GenerationConfig, GenerationOptions
from clearhead.io import hub
from clearhead.pipelines.seq2seq.language_detection import detect_language
from clearhead.pipelines.seq2seq.outputs import Generated
from clearhead.pipelines.text_to_text import WINDOW_TEXTS, TextToText
from clearhead.runtime.streaming import chunked, with_prefixes
from clearhead.tokenizers.base import as_texts

Direction = tuple[str, str]
"""Source and target language."""

AUTO = "auto"
"""Source language that is detected for each text."""

_LANGUAGES = {"en": "English", "de": "German"}


class Translator:
    """The translators of the package: English to German and German to English.

    Args:
        source: language of the texts, "en" or "de". Default: "auto", the language of each text as a short language test
            finds it. A text in neither language is translated from English, or from the only possible language.
        target: language of the translations. Default: the other language.
        load: loads a model by its name; a model is loaded when the first text needs it.

    Attributes:
        counts: number of translated texts by direction.
        unclear: number of texts in neither language, if the language was detected.
        misdirected: number of texts whose language was detected, but whose translator is not installed.

    Raises:
        ValueError: there is no such direction, or its translator is not installed.

    >>> from clearhead.pipelines.translator import Translator
    >>> Translator("en").generate("Good morning!")
    'Guten Morgen!'
    """

    def __init__(
        self,
        source: str | None = None,
        target: str | None = None,
        load: Callable[[str], TextToText] = TextToText.from_pretrained,
    ) -> None:
        self._directions = choose_directions(source, target)
        self._load, self._models = load, dict[Direction, TextToText]()
        self.is_auto = len(self._directions) > 1 or (source in (None, AUTO) and target is None)
        self.counts: Counter[Direction] = Counter()
        self.unclear = self.misdirected = 0

    @property
    def generation_config(self) -> GenerationConfig:
        """Default options of the first direction's model."""
        return self._model(self._directions[0]).generation_config

    def generate(self, texts: str | Iterable[str], **options: Unpack[GenerationOptions]) -> str | list[str]:
        """Return one translation for each text, or that of a single text; `options` as in `TextToText.generate`."""
        listed, single = as_texts(texts)
        results = [output.text for output in self.generate_iter(listed, **options)]
        return results[0] if single else results

    def generate_iter(
        self,
        texts: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        strict: bool = False,
        window: int = WINDOW_TEXTS,
        label: Callable[[int], str] = "text {}".format,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[Generated]:
        """Translate a stream of texts, in order; arguments as in `TextToText.generate_iter`."""
        done = 0
        for chunk, own in with_prefixes(chunked(texts, window), prefixes, label):
            outputs: dict[int, Generated] = {}
            for direction, indices in self._by_direction(chunk).items():
                generated = self._model(direction).generate_iter(
                    [chunk[index] for index in indices],
                    prefixes=None if own is None else [own[index] for index in indices],
                    strict=strict,
                    window=window,
                    label=lambda number, indices=indices, done=done: label(done + indices[number]),  # type: ignore[misc]
                    on_batch=on_batch,
                    **options,
                )
                with error_context(index=lambda number, indices=indices, done=done: done + indices[number]):  # type: ignore[misc]
                    outputs |= dict(zip(indices, generated, strict=True))
            yield from (outputs[index] for index in range(len(chunk)))
            done += len(chunk)

    def report(self) -> str | None:
        """Return in words which directions were taken; None if they were given, or every text is clearly English."""
        if not self.is_auto or not (self.unclear or self.misdirected or self.counts.keys() - {("en", "de")}):
            return None
        taken = " and ".join(f"{_texts(count)} {describe(direction)}" for direction, count in self.counts.items())
        parts = [f"translated {taken}"]
        if self.unclear:
            parts.append(f"{_texts(self.unclear)} may be in neither language")
        if self.misdirected:
            (missing,) = (direction for direction in hub.TRANSLATORS if direction not in self._directions)
            looks = "looks" if self.misdirected == 1 else "look"
            name = f"{_LANGUAGES[missing[0]]}, but the translator {describe(missing)} is not installed"
            parts.append(f"{_texts(self.misdirected)} {looks} {name}")
        return f"{'; '.join(parts)}. Set the direction with --from and --to"

    def _by_direction(self, texts: Iterable[str]) -> dict[Direction, list[int]]:
        result: dict[Direction, list[int]] = {}
        for index, text in enumerate(texts):
            direction = self._directions[0]
            if self.is_auto and text.strip():
                direction = self._detected(text)
            if text.strip():
                self.counts[direction] += 1
            result.setdefault(direction, []).append(index)
        return result

    def _detected(self, text: str) -> Direction:
        language, is_clear = detect_language(text)
        for direction in self._directions:
            if direction[0] == language:
                self.unclear += not is_clear
                return direction
        self.misdirected += is_clear
        self.unclear += not is_clear
        return self._directions[0]

    def _model(self, direction: Direction) -> TextToText:
        if direction not in self._models:
            self._models[direction] = self._load(hub.TRANSLATORS[direction])
        return self._models[direction]


def choose_directions(source: str | None, target: str | None) -> list[Direction]:
    """Return the installed directions for a source and a target language, which may be None; English first.

    Raises:
        ValueError: there is no such direction, or its translator is not installed.

    >>> choose_directions("en", None)
    [('en', 'de')]
    """
    directions = [
        direction
        for direction in hub.TRANSLATORS
        if source in (None, AUTO, direction[0]) and target in (None, direction[1])
    ]
    if not directions:
        asked = [f"from {source!r}" if source else "", f"to {target!r}" if target else ""]
        listed = ", ".join(f"{from_} to {to}" for from_, to in hub.TRANSLATORS)
        raise ValueError(f"there is no translator {' '.join(filter(None, asked))}; the directions are {listed}")
    installed = [direction for direction in directions if hub.is_installed(hub.TRANSLATORS[direction])]
    if not installed:
        name = hub.TRANSLATORS[directions[0]]
        others = [direction for direction in hub.TRANSLATORS if hub.is_installed(hub.TRANSLATORS[direction])]
        listed = ", ".join(f"{from_} to {to}" for from_, to in others)
        raise ValueError(f"the translator {describe(directions[0])} ({name}) is not installed; installed: {listed}")
    return installed


def describe(direction: Direction) -> str:
    """Return a direction in words.

    >>> describe(("en", "de"))
    'from English to German'
    """
    source, target = (_LANGUAGES[language] for language in direction)
    return f"from {source} to {target}"


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count} texts"
