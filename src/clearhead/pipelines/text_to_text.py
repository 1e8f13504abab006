"""Generate texts from texts: translations, summaries, free-form answers."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Unpack, overload

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer
from clearhead.checkpoints.seq2seq_family import Seq2SeqFamily
from clearhead.finite import error_context
from clearhead.generation.config import GenerationConfig, GenerationOptions, show_generation_options
from clearhead.generation.config_files import load_checked_config, save_generation_config
from clearhead.generation.shortlist.shortlist import FILE as SHORTLIST_FILE
from clearhead.generation.shortlist.shortlist import Shortlist, read_shortlist, write_shortlist
from clearhead.generation.state import GenerationModel
from clearhead.generation.task_prompts import TaskPrompts
from clearhead.io import hub
from clearhead.io.json import read_json, write_json
from clearhead.models.seq2seq import Seq2Seq
from clearhead.pipelines.base import GenerateKeywords, Pipeline, check_room, warn_truncated
from clearhead.pipelines.seq2seq.copying import CopyRule
from clearhead.pipelines.seq2seq.inference import Seq2SeqInference
from clearhead.pipelines.seq2seq.outputs import Generated, StreamedToken
from clearhead.pipelines.seq2seq.source_preparation import PreparedText, SourcePreparation
from clearhead.runtime.device import choose_device
from clearhead.runtime.int8.calibration import calibrate_seq2seq
from clearhead.runtime.int8.files import Int8Source, int8_file
from clearhead.runtime.int8.seq2seq import inference_seq2seq
from clearhead.runtime.onnx import OnnxSeq2Seq
from clearhead.runtime.precision import choose_precision
from clearhead.runtime.streaming import chunked, with_prefixes
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import TextTokenizer, as_texts

WINDOW_TEXTS = 512
"""Number of texts of a stream that are sorted by length and computed together."""


class TextToText(Pipeline[Seq2Seq]):
    """An encoder–decoder with its tokenizer, from texts to texts.

    Args:
        model: the model, in float32. It needs no weights if another `inference_model` computes.
        tokenizer: its tokenizer.
        family: the checkpoint family for `save_pretrained`.
        generation_config: default options of a call.
        prompts: tasks that the checkpoint describes.
        inference_model: a model that computes in place of `model`, such as ONNX graphs.
        precision: "float32", "bfloat16", "int8", or "auto", the fastest accurate one on this processor.
        device: "auto", "cpu", "cuda", "cuda:1", "mps" ...
        int8_weights: as in `TextEncoder`.

    Attributes:
        shortlist: the tokens that may translate each source token; None for all.
        copy_rule: how to copy URLs, emoji and words of other scripts from the source; None to copy nothing.
        direction: source and target language of a translator of the package; None for other models.

    >>> from clearhead import TextToText
    >>> TextToText.from_pretrained(precision="float32", device="cpu")
    TextToText('tatoeba-en-de', 8.9M parameters, float32, cpu)
    """

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer: TextTokenizer,
        family: Seq2SeqFamily,
        generation_config: GenerationConfig,
        prompts: TaskPrompts | None = None,
        inference_model: GenerationModel | None = None,
        *,
        precision: str = "auto",
        device: str = "auto",
        int8_weights: Path | None = None,
    ) -> None:
        self.model, self.tokenizer, self.family, self.device = model, tokenizer, family, choose_device(device)
        self.name = f"of type {family.model_type}"
        self.shortlist: Shortlist | None = None
        self.direction: tuple[str, str] | None = None
        rule = CopyRule(tokenizer)
        self.copy_rule: CopyRule | None = rule if rule.has_placeholders else None
        self.generation_config, self.prompts = generation_config, prompts or TaskPrompts({})
        self.precision = choose_precision(precision, self.device, model, int8_weights)
        self.max_length = min(filter(None, (tokenizer.max_length, model.config.max_len)), default=None)
        self.int8 = Int8Source(partial(calibrate_seq2seq, model, tokenizer, self.max_length), int8_weights)
        copied = inference_model or inference_seq2seq(model, self.precision, self.device, self.int8)
        self.inference_model: GenerationModel = copied

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = hub.TRANSLATOR,
        *,
        precision: str = "auto",
        device: str = "auto",
        revision: str | None = None,
        runtime: Literal["torch", "onnx"] = "torch",
        shortlist: bool | None = None,
        copy_unknown: bool | None = None,
    ) -> "TextToText":
        """Load a model from a local folder or the Hugging Face Hub.

        Args:
            name: a folder, a Hub id, or a translator inside the package: "tatoeba-en-de", the default, from English to
                German, or "tatoeba-de-en".
            precision, device: as in the class.
            revision: branch, tag or commit, for a Hub id.
            runtime: "torch", or "onnx" for a folder of `clearhead export --to onnx`, in float32 on the CPU.
            shortlist: whether the folder's shortlist limits the tokens of an output. Default: for the model inside the
                package, in 8 bits.
            copy_unknown: whether URLs, e-mail addresses, codes, emoji and words in other scripts are copied from the
                source. Default: for the models inside the package, and those that were trained with placeholders.

        Raises:
            ValueError: no such model, a model without a decoder, missing or broken files, no shortlist or one of
                another vocabulary, or an option that is not supported.
        """
        folder = hub.resolve_model(name, revision)
        graphs: OnnxSeq2Seq | None = None
        if runtime == "onnx":
            if (precision, device) not in itertools.product(("auto", "float32"), ("auto", "cpu")):
                raise ValueError(f"runtime='onnx' computes in float32 on the CPU; got {precision!r} on {device!r}")
            graphs, family = OnnxSeq2Seq(folder), checkpoints.get_seq2seq_family(folder)
            model = graphs.model
            precision, device = "float32", "cpu"
        else:
            model, family = checkpoints.load_seq2seq(folder)
        sizes = model.config.vocab_size, model.config.target_vocab_size or model.config.vocab_size
        with error_context(model=str(name)):
            text_to_text = cls(
                model,
                check_vocabulary(load_tokenizer(folder, family.model_type), folder, *sizes),
                family,
                load_checked_config(folder, sizes[1], model.config.max_len),
                TaskPrompts.from_folder(folder),
                graphs,
                precision=precision,
                device=device,
                int8_weights=int8_file(folder),
            )
        check_room(folder, text_to_text.tokenizer, text_to_text.max_length)
        text_to_text.name = str(name)
        text_to_text.direction = hub.translator_direction(folder)
        if copy_unknown or (copy_unknown is None and text_to_text.direction is not None):
            text_to_text.copy_rule = CopyRule(text_to_text.tokenizer, text_to_text.direction)
        elif copy_unknown is False:
            text_to_text.copy_rule = None
        if shortlist is None:
            shortlist = text_to_text.precision.name == "int8" and text_to_text.direction is not None
        if shortlist:
            path = folder / SHORTLIST_FILE
            text_to_text.shortlist = read_shortlist(path, text_to_text.tokenizer, model.config)
        return text_to_text

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that transformers opens, with the weights in float32.

        It includes all tasks of the config.json. A selected task must be selected again after loading.
        """
        if self.model.device.type == "meta":
            raise ValueError("an exported model has its weights in its graphs; save the model that it was made from")
        folder = Path(folder)
        self.family.save(self.model, folder)
        if self.prompts.tasks:
            path = folder / "config.json"
            write_json(path, {**read_json(path), "task_specific_params": dict(self.prompts.tasks)})
        # the model's limit too: a program that reads the tokenizer's limit only would exceed the model's positions
        self.tokenizer.save(folder, self.max_length)
        config = self.model.config
        if self.shortlist is not None:
            write_shortlist(folder / SHORTLIST_FILE, self.shortlist, self.tokenizer, config)
        save_generation_config(
            self.generation_config, folder, pad_id=config.pad_id, start_id=config.start_id, eos_ids=config.eos_ids
        )

    def for_task(self, task: str) -> "TextToText":
        """Return the same model, set up for a task that its config.json describes (T5's and BART's do).

        Args:
            task: a name such as "summarization" or "translation_en_to_de".

        Raises:
            ValueError: the task is not described; the message lists the tasks that are.
        """
        other = copy.copy(self)
        other.prompts = self.prompts.with_task(task)
        other.generation_config = other.prompts.generation_config(self.generation_config)
        return other

    @overload  # a string is an iterable of strings, too
    def generate(  # type: ignore[overload-overlap]
        self, texts: str, *, return_details: Literal[False] = False, **options: Unpack[GenerateKeywords]
    ) -> str: ...
    @overload  # a string is an iterable of strings, too
    def generate(  # type: ignore[overload-overlap]
        self, texts: str, *, return_details: Literal[True], **options: Unpack[GenerateKeywords]
    ) -> Generated: ...
    @overload
    def generate(
        self, texts: Iterable[str], *, return_details: Literal[False] = False, **options: Unpack[GenerateKeywords]
    ) -> list[str]: ...
    @overload
    def generate(
        self, texts: Iterable[str], *, return_details: Literal[True], **options: Unpack[GenerateKeywords]
    ) -> list[Generated]: ...
    @show_generation_options
    def generate(
        self,
        texts: str | Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefixes: Sequence[str] | None = None,
        strict: bool = False,
        return_details: bool = False,
        **options: Unpack[GenerationOptions],
    ) -> str | Generated | list[str] | list[Generated]:
        """Generate one output for each text, in the order of the texts; the output for an empty text is empty.

        Args:
            texts: a source, or sources in a list, tuple, NumPy array, pandas Series, generator ... A source that is
                longer than the model's limit is truncated, and a warning counts them.
            source_lang, target_lang: languages, for models that require them.
            prefixes: forced beginning of each output, or of the only one; "" for none. Spaces at its end are removed,
                and a warning names a prefix that the tokenizer cannot represent.
            strict: raise an error for a text that is too long, or for a prefix that cannot be represented.
            return_details: return `Generated` objects instead of strings; required for num_return_sequences above 1.
            options: beam_size (5 if the checkpoint sets none), max_new_tokens, length_penalty, do_sample and the other
                options of `GenerationConfig`. The checkpoint's values are the defaults.

        Returns:
            A list with one output per text; for a single text, its output.

        Raises:
            ValueError: an option out of range, an unsupported language, or a text that is not a string.
            TypeError: an unknown option.
            NonFiniteError: the log-probabilities for a text hold NaN.

        >>> from clearhead import TextToText
        >>> TextToText.from_pretrained().generate("Where can I buy a ticket?", num_beams=4)
        'Wo kann ich ein Ticket kaufen?'
        """
        listed, single = as_texts(texts)
        config = self.generation_config.updated(**options)
        if not return_details and (options.get("num_return_sequences") or 1) > 1:
            raise ValueError("several outputs per text need return_details=True; each result lists them in n_best")
        own_prefixes = None if prefixes is None else as_texts(prefixes)[0]
        if own_prefixes is not None and len(own_prefixes) != len(listed):
            counts = f"{len(listed)} texts and {len(own_prefixes)} prefixes"
            raise ValueError(f"each text has a prefix, which may be empty; got {counts}")
        outputs = self._inference().generate(listed, config, (source_lang, target_lang), own_prefixes, strict)
        fix = "Split them, or set strict=True to raise an error"
        warn_truncated([output.truncated for output in outputs], self.max_length, fix)
        results = outputs if return_details else [output.text for output in outputs]
        return results[0] if single else results

    @show_generation_options
    def generate_iter(
        self,
        texts: Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefixes: Iterable[str] | None = None,
        strict: bool = False,
        window: int = WINDOW_TEXTS,
        label: Callable[[int], str] = "text {}".format,
        on_batch: Callable[[int, int], object] = lambda texts, tokens: None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[Generated]:
        """Generate outputs for a stream of texts, in order.

        Args:
            texts, source_lang, target_lang, prefixes, strict, options: as in `generate`.
            window: number of texts that are read and computed together.
            label: returns the name of a text in messages, from its index.
            on_batch: called after each batch with the number of its texts and of their new tokens.
        """
        config, inference, done = self.generation_config.updated(**options), self._inference(), 0
        for chunk, own in with_prefixes(chunked(texts, window), prefixes, label):
            yield from inference.generate(chunk, config, (source_lang, target_lang), own, strict, done, label, on_batch)
            done += len(chunk)

    @show_generation_options
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
        """Yield the tokens of one text's output one by one, by greedy search or sampling.

        Args: as in `generate`; beam_size is 1.

        Raises:
            ValueError, NonFiniteError: as in `generate`; several beams or outputs.
        """
        if options.get("beam_size") is None:
            options["beam_size"] = 1
        config, prepared = self.prepare(
            text, source_lang=source_lang, target_lang=target_lang, prefix=prefix, **options
        )
        if config.beam_size > 1 or config.num_return_sequences > 1:
            raise ValueError("beams are chosen at the end only: a stream takes beam_size=1 and has one output")
        languages = source_lang, target_lang
        return iter(()) if prepared.empty else self._inference().stream(text, prepared, config, languages, strict)

    @show_generation_options
    def prepare(
        self,
        text: str,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        prefix: str = "",
        **options: Unpack[GenerationOptions],
    ) -> tuple[GenerationConfig, PreparedText]:
        """Return the generation config and the tokenized text with which `generate` runs the model.

        For tools that inspect one run.

        Args: as in `generate`.

        Raises:
            ValueError: as in `generate`.
        """
        config, preparation = self.generation_config.updated(**options), self._preparation()
        config, (prepared,) = preparation.prepare([text], config, source_lang, target_lang, [prefix])
        config.check_ids(preparation.target_vocab_size)
        return config, prepared

    @show_generation_options
    def generation_config_for(
        self,
        texts: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationConfig:
        """Return the config with which `generate` would run, to check options before computing.

        Args: as in `generate`.

        Raises:
            ValueError, TypeError: as in `generate`, about its options.
        """
        config = self.generation_config.updated(**options)
        return self._preparation().set_languages(config, texts, source_lang, target_lang)[2]

    def split_document(self, text: str, prefix: str = "", max_length: int | None = None) -> list[str]:
        """Split a text into parts that fit the model, between sentences where possible.

        Args:
            text: a text of any length; an empty one has no parts.
            prefix: a prefix that is put before each part.
            max_length: longest part in tokens; None for the model's limit.

        Raises:
            ContextOverflowError: the prefix leaves no room for a text.
        """
        return self._preparation().split(text, prefix, max_length)

    def _preparation(self) -> SourcePreparation:
        return SourcePreparation(
            self.tokenizer,
            self.model.config,
            self.max_length,
            self.prompts.prefix,
            self.shortlist,
            self.copy_rule,
            self.direction,
        )

    def _inference(self) -> Seq2SeqInference:
        return Seq2SeqInference(self.inference_model, self._preparation(), self.name, self.precision.name)
