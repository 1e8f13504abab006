"""Texts to texts: translation, summaries, answers in words."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Unpack, overload

import torch

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.data.sentences import split_by_tokens
from clearhead.finite import naming
from clearhead.generation.config import GenerationConfig, GenerationOptions
from clearhead.generation.generate import EncodedSource, end_ids, search, stream
from clearhead.generation.state import GenerationModel, Hypothesis
from clearhead.generation.task_prompts import TaskPrompts
from clearhead.io import hub
from clearhead.io.json import read_json, write_json
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.outputs import EMPTY, Generated, StreamedToken
from clearhead.runtime.onnx import OnnxSeq2Seq
from clearhead.runtime.precision import Precision, device_named, dtype_for, inference_copy
from clearhead.runtime.streaming import chunked
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import TextTokenizer, check_texts
from clearhead.tokenizers.question_context import ContextOverflowError

log = logging.getLogger(__name__)

WINDOW_TEXTS = 512
"""Texts that are read, sorted by length and computed together when an input is streamed."""


@dataclass(frozen=True)
class PreparedText:
    """A text on its way through the model.

    Args:
        source: its tokens, and what its target is given.
        prefix: the ids of the prefix, which the target is given too.
        beginning: the prefix as it was given.
        truncated: whether the text was longer than the model takes.
        empty: whether there is nothing in it, of which nothing is generated.
    """

    source: EncodedSource
    prefix: tuple[int, ...]
    beginning: str
    truncated: bool
    empty: bool


class TextToText:
    """An encoder–decoder that turns texts into texts.

    Args:
        model: the model, in float32; where a runner computes in its place it needs no weights.
        tokenizer: its tokenizer.
        family: the checkpoint family that `save_pretrained` writes.
        settings: how it generates where a call does not say.
        prompts: what the checkpoint puts before a text for a task.
        runner: what computes in the model's place, such as its graphs in ONNX Runtime.
        precision: "float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it fast.
        device: "auto", "cpu", "cuda", "cuda:1", "mps" ...

    >>> from clearhead import TextToText
    >>> TextToText.from_pretrained().generate(["Where can I buy a ticket?"])
    ['Wo kann ich ein Ticket kaufen?']
    """

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: TextTokenizer,
        family: Seq2SeqFamily,
        settings: GenerationConfig,
        prompts: TaskPrompts | None = None,
        runner: GenerationModel | None = None,
        *,
        precision: Precision = "auto",
        device: str = "auto",
    ) -> None:
        self.model, self.tokenizer, self.family = model, tokenizer, family
        self.name = f"of type {family.model_type}"
        self.settings, self.prompts = settings, prompts or TaskPrompts({})
        self.device = device_named(device)
        self.dtype = dtype_for(precision, self.device)
        self._runner: GenerationModel = (
            inference_copy(model, self.dtype, self.device).eval() if runner is None else runner
        )
        lengths = [length for length in (tokenizer.max_length, model.config.max_len) if length is not None]
        self.max_length = min(lengths, default=None)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = hub.TRANSLATOR,
        *,
        precision: Precision = "auto",
        device: str = "auto",
        revision: str | None = None,
        runtime: Literal["torch", "onnx"] = "torch",
    ) -> "TextToText":
        """The model in a local folder or on the Hugging Face Hub.

        Args:
            name: a folder, a Hub id, or "tatoeba-en-de", the default: English to German, inside the package.
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.
            runtime: what computes: PyTorch, or for a folder that `clearhead export --to onnx` wrote ONNX Runtime, on
                the CPU and in the numbers of its graphs.

        Raises:
            ValueError: no such model, a model without a decoder, files that are missing or broken, an option that is
                not understood; the message says which.
        """
        folder = hub.resolve_model(name, revision)
        runner: OnnxSeq2Seq | None = None
        if runtime == "onnx":
            if (precision, device) not in itertools.product(("auto", "float32"), ("auto", "cpu")):
                raise ValueError(f"runtime='onnx' computes in float32 on the CPU; got {precision!r} on {device!r}")
            runner, family = OnnxSeq2Seq(folder), checkpoints.get_seq2seq_family(folder)
            with torch.device("meta"):
                model = Seq2Seq(runner.config)
            precision, device = "float32", "cpu"
        else:
            model, family = checkpoints.load_seq2seq(folder)
        sizes = model.config.vocab_size, model.config.target_vocab_size or model.config.vocab_size
        made = cls(
            model,
            check_vocabulary(load_tokenizer(folder, family.model_type), folder, *sizes),
            family,
            _settings(folder, sizes[1]),
            TaskPrompts.from_folder(folder),
            runner,
            precision=precision,
            device=device,
        )
        made.name = str(name)
        return made

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that transformers opens, with the weights in float32.

        The tasks that its config.json describes are written too; one that is set up must be set up again.
        """
        if self.model.device.type == "meta":
            raise ValueError("an exported model's weights are in its graphs; save the model that it was made of")
        folder = Path(folder)
        self.family.save(self.model, folder)
        if self.prompts.tasks:
            path = folder / "config.json"
            write_json(path, {**read_json(path), "task_specific_params": dict(self.prompts.tasks)})
        # the model's limit too: what cuts texts by the tokenizer's alone would go beyond its positions
        self.tokenizer.save(folder, self.max_length)
        config = self.model.config
        self.settings.write(folder, pad_id=config.pad_id, start_id=config.start_id, eos_ids=config.eos_ids)

    def for_task(self, task: str) -> "TextToText":
        """The same model, set up for a task that its config.json describes (T5's and BART's do).

        Args:
            task: such as "summarization" or "translation_en_to_de".

        Raises:
            ValueError: a task that is not described; the message lists those that are.
        """
        other = object.__new__(type(self))
        other.__dict__ = {**self.__dict__, "prompts": self.prompts.chosen(task)}
        other.settings = other.prompts.settings(self.settings)
        return other

    @overload
    def generate(
        self,
        texts: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefixes: Sequence[str] | None = None,
        strict: bool = False,
        return_details: Literal[False] = False,
        **options: Unpack[GenerationOptions],
    ) -> list[str]: ...
    @overload
    def generate(
        self,
        texts: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefixes: Sequence[str] | None = None,
        strict: bool = False,
        return_details: Literal[True],
        **options: Unpack[GenerationOptions],
    ) -> list[Generated]: ...
    def generate(
        self,
        texts: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefixes: Sequence[str] | None = None,
        strict: bool = False,
        return_details: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> list[str] | list[Generated]:
        """One output for each text, in the order of the texts; for an empty text an empty one.

        Args:
            texts: the sources. What is longer than the model is cut, with a warning that says which.
            source_lang, target_lang: for models that are told them.
            prefixes: for each text what its output must start with; "" for nothing. Blanks at its end are left out;
                what the tokenizer cannot write is said in a warning.
            strict: a text that is too long, or a prefix that cannot be written, is an error instead.
            return_details: give `Generated` objects in place of strings.
            options: beam_size (5 where the checkpoint says nothing), max_new_tokens, length_penalty, do_sample and so
                on: all that `GenerationConfig` explains. What is not given is as the checkpoint says.

        Raises:
            ValueError: an option out of range, a language that the model does not know, a text that is no string.
            TypeError: an option that there is not.
            NonFiniteError: the log-probabilities for a text hold NaN.
        """
        texts = check_texts(texts)
        outputs = list(
            self.each(
                texts,
                source_lang=source_lang,
                target_lang=target_lang,
                prefixes=prefixes,
                strict=strict,
                window=max(1, len(texts)),
                **options,
            )
        )
        return outputs if return_details else [output.text for output in outputs]

    def each(
        self,
        texts: Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefixes: Iterable[str] | None = None,
        strict: bool = False,
        window: int = WINDOW_TEXTS,
        called: Callable[[int], str] = "text {}".format,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[Generated]:
        """The same for texts without end, in order: some are read, computed together and given, then the next ones.

        Args:
            texts, source_lang, target_lang, prefixes, strict, options: as in `generate`.
            window: how many are read at a time.
            called: what messages call a text, by its number from 0 on.
        """
        settings = self.settings.changed(**options)
        beginnings = None if prefixes is None else iter(prefixes)
        number = 0
        for some in chunked(texts, window):
            given = None if beginnings is None else list(itertools.islice(beginnings, len(some)))
            if given is not None and len(given) < len(some):
                raise ValueError(f"each text has a prefix, which may be empty; {called(number + len(given))} has none")
            told, prepared = self._prepared(some, settings, source_lang, target_lang, given)
            for place, text in enumerate(prepared):
                if not text.empty:
                    self._check(text, called(number + place), told, strict)
            with self._naming(some, number):
                outputs = self._outputs(prepared, told)
            yield from outputs
            number += len(some)
        if beginnings is not None and next(beginnings, None) is not None:
            raise ValueError(f"each text has a prefix; there are {number} texts and more prefixes")

    def settings_for(
        self,
        texts: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationConfig:
        """How `generate` would generate for these texts, which are not read further: what is wrong with its options is
        found before anything is computed.

        Args: as in `generate`.

        Raises:
            ValueError, TypeError: as in `generate`, of its options.
        """
        return self._directed(self.settings.changed(**options), texts, source_lang, target_lang)[2]

    def parts(self, text: str, before: str = "", max_length: int | None = None) -> list[str]:
        """A text in parts that the model takes, cut between sentences where it is too long, each with what is `before`.

        Args:
            text: the text, of any length; of an empty one there are no parts.
            before: what is put before each part.
            max_length: longest source in tokens, where it shall be less than the model takes.

        Raises:
            ContextOverflowError: what is before leaves no room for a text.
        """

        def count(texts: Sequence[str]) -> list[int]:
            return [len(tokens.ids) for tokens in self.tokenizer.encode(texts)]

        if not text.strip():
            return []
        longest = self.max_length if max_length is None else max_length
        own = self.prompts.before + before
        if longest is None or count([own + text])[0] <= longest:
            return [before + text]
        (taken,) = count([own])
        if taken >= longest:
            raise ContextOverflowError(
                f"what stands before the text has {taken} tokens; it leaves no room in the {longest} that are taken"
            )
        return [before + part for part in split_by_tokens(text, count, longest - taken)]

    def stream(
        self,
        text: str,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefix: str = "",
        strict: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[StreamedToken]:
        """The tokens of one text's output as they are chosen, greedily or by draws.

        Args: as in `generate`; the number of beams is 1.

        Raises:
            ValueError, NonFiniteError: as in `generate`; several beams or outputs.
        """
        if options.get("beam_size") is None:
            options["beam_size"] = 1
        settings, prepared = self.prepare(
            text, source_lang=source_lang, target_lang=target_lang, prefix=prefix, **options
        )
        if settings.beam_size > 1 or settings.num_return_sequences > 1:
            raise ValueError("beams are only chosen at the end: a stream takes beam_size=1 and gives one output")
        return iter(()) if prepared.empty else self._streamed(text, prepared, settings, strict)

    def prepare(
        self,
        text: str,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefix: str = "",
        **options: Unpack[GenerationOptions],
    ) -> tuple[GenerationConfig, PreparedText]:
        """What a text becomes before the model runs: the settings of its search, its tokens, and its target's first.

        For whoever looks at one run from outside: `generate` prepares its texts alike, and `stream` starts from this.

        Args: as in `generate`.

        Raises:
            ValueError: as in `generate`.
        """
        settings = self.settings.changed(**options)
        settings, (prepared,) = self._prepared([text], settings, source_lang, target_lang, [prefix])
        settings.check_ids(self.model.config.target_vocab_size or self.model.config.vocab_size)
        return settings, prepared

    def _streamed(
        self, source: str, prepared: PreparedText, settings: GenerationConfig, strict: bool
    ) -> Iterator[StreamedToken]:
        self._check(prepared, "the text", settings, strict)
        ids = list(prepared.prefix)
        told = ""
        tokens = stream(self._runner, [prepared.source], settings)
        while True:
            with self._naming([source]):
                token = next(tokens, None)
            if token is None:
                return
            ids.append(token.id)
            text = self.tokenizer.decode(ids)
            # a character may be several tokens long: what is not whole yet waits
            new = "" if text.endswith("\ufffd") and not token.last else text.removeprefix(told)
            told += new
            yield StreamedToken(token.id, self.tokenizer.ids_to_tokens([token.id])[0], new, token.log_prob)

    def _check(self, text: PreparedText, name: str, settings: GenerationConfig, strict: bool) -> None:
        """Says what of a text cannot be as it was asked for: with `strict`, as an error.

        Raises:
            ValueError: also where its prefix leaves nothing to generate, or an id is outside the vocabulary.
        """
        config = self.model.config
        size = config.target_vocab_size or config.vocab_size
        try:
            settings.check_ids(size)
            settings.greatest_length(len(text.source.prompt), config.max_len)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        complaints = []
        if text.truncated:
            complaints.append(
                (f"{name} is longer than the {self.max_length} tokens that this model takes", "it was cut")
            )
        written = self.tokenizer.decode(text.prefix)
        if written.split() != text.beginning.split():
            unknown = f"{name}: the model's tokenizer cannot write the prefix {text.beginning!r}"
            complaints.append((unknown, f"it became {written!r}"))
        for complaint, consequence in complaints:
            if strict:
                raise ValueError(complaint)
            log.warning("%s: %s", complaint, consequence)

    def _prepared(
        self,
        texts: Sequence[str],
        settings: GenerationConfig,
        source_lang: str | None,
        target_lang: str | None,
        prefixes: Sequence[str] | None,
    ) -> tuple[GenerationConfig, list[PreparedText]]:
        """The settings for these languages, and the texts."""
        texts = check_texts(texts)
        prefixes = [""] * len(texts) if prefixes is None else check_texts(prefixes)
        tokenizer, start, settings = self._directed(settings, texts, source_lang, target_lang)
        encoded = tokenizer.encode([self.prompts.before + text for text in texts], self.max_length)
        prepared = []
        for text, tokens, prefix in zip(texts, encoded, prefixes, strict=True):
            given = tuple(self.tokenizer.target_ids(prefix)) if prefix else ()
            # a forced first token stands before what is forced after it
            first = () if settings.forced_bos_token_id is None or not given else (settings.forced_bos_token_id,)
            source = EncodedSource(tokens.ids, (start, *first, *given))
            prepared.append(PreparedText(source, given, prefix, tokens.truncated, not text.strip()))
        return settings, prepared

    def _directed(
        self, settings: GenerationConfig, texts: Sequence[str], source: str | None, target: str | None
    ) -> tuple[TextTokenizer, int, GenerationConfig]:
        """The tokenizer for the languages, the target's first id, and the settings with a language forced after it."""
        start = self.model.config.start_id if settings.start_id is None else settings.start_id
        tokenizer = self.tokenizer
        told = (
            settings.forced_bos_token_id is not None
            or tokenizer.ids_to_tokens([start])[0] in tokenizer.languages
            or all(
                any(text.startswith(f">>{code}<<") for code in tokenizer.languages) for text in texts if text.strip()
            )
        )
        if source is None and target is None and (told or not tokenizer.languages):
            return tokenizer, start, settings
        directed = tokenizer.for_languages(source, target)
        start = start if directed.start_id is None else directed.start_id
        # a model that is told its target elsewhere keeps what its settings force
        forced = directed.forced_bos_token_id
        return directed.tokenizer, start, settings if forced is None else replace(settings, forced_bos_token_id=forced)

    def _naming(self, texts: Sequence[str], before: int = 0) -> AbstractContextManager[None]:
        """Name the text, its number and this model in a `NonFiniteError`."""
        precision = str(self.dtype).removeprefix("torch.")
        return naming(index=before.__add__, text=texts.__getitem__, model=self.name, precision=precision)

    def _outputs(self, texts: Sequence[PreparedText], settings: GenerationConfig) -> list[Generated]:
        """The outputs of texts, in their order."""
        filled = [place for place, text in enumerate(texts) if not text.empty]
        with naming(index=filled.__getitem__):
            found = iter(search(self._runner, [texts[place].source for place in filled], settings))
        return [EMPTY if text.empty else self._told(text, next(found), settings) for text in texts]

    def _told(self, text: PreparedText, hypotheses: Sequence[Hypothesis], settings: GenerationConfig) -> Generated:
        """What was found for a text, as people read it."""
        ends = end_ids(self._runner, settings)
        limit = settings.greatest_length(len(text.source.prompt), self.model.config.max_len)
        room = limit - len(text.source.prompt) if settings.forced_eos_token_id else None  # there an end is forced
        found = tuple(
            Generated(
                text=self.tokenizer.decode([*text.prefix, *hypothesis.ids]),
                token_ids=hypothesis.ids,
                tokens=tuple(self.tokenizer.ids_to_tokens(hypothesis.ids)),
                log_probs=hypothesis.log_probs,
                score=hypothesis.score,
                complete=bool(hypothesis.ids) and hypothesis.ids[-1] in ends and len(hypothesis.ids) != room,
                truncated=text.truncated,
            )
            for hypothesis in hypotheses
        )
        return replace(found[0], n_best=found)


def _settings(folder: Path, vocab_size: int) -> GenerationConfig:
    """Return a checkpoint's generation settings.

    Raises:
        ValueError: a value that is wrong, or a token id outside the target's vocabulary; the message names the file.
    """
    path = folder / "generation_config.json"
    path = path if path.is_file() else folder / "config.json"
    try:
        settings = GenerationConfig.from_folder(folder)
        settings.check_ids(vocab_size)
    except IndexError:
        raise ValueError(f"{path}: decoder_start_token_id is an empty list; give one token id") from None
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return settings
