"""The pipelines "text2text-generation", "translation" and "summarization"."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clearhead.generation.config import GenerationConfig, GenerationOptions
from clearhead.integrations.transformers.base import TextPipeline
from clearhead.pipelines.text_to_text import TextToText
from clearhead.tokenizers.base import check_texts

_RESULT_KEYS = {
    "text2text-generation": "generated_text",
    "summarization": "summary_text",
    "translation": "translation_text",
}
_DEFAULT_TRANSLATION = "translation_en_to_de"
_LANGUAGES = ("src_lang", "tgt_lang")

_NUM_BEAMS = 4
_MAX_NEW_TOKENS = 256
_UNSET_LENGTH = 20
"""The max_length of a generation config in transformers that sets none."""


class TextToTextGeneration(TextPipeline):
    """Texts from texts: for a text a list of one result, or of `num_return_sequences`.

    Args:
        task: name of the task, with its languages for "translation_en_to_de".
        model: an encoder–decoder. Prefix and options of the task in its config.json are used.
        prefix: prefix of every text, for a model that does not describe the task.
        defaults: options of every call.

    Options of a call: those of `TextToText.generate`, with transformers' names; for translations also `src_lang` and
    `tgt_lang`, which a model without languages ignores. As in transformers 4.57, the defaults are 4 beams and 256 new
    tokens, unless the model sets max_length. A model whose generation_config.json sets do_sample samples one sequence;
    transformers samples with 4 beams.
    """

    options = (*GenerationOptions.__annotations__, *_LANGUAGES)

    def __init__(self, task: str, model: TextToText, prefix: str, defaults: Mapping[str, Any]) -> None:
        super().__init__(task, defaults)
        # transformers takes the prefix and options of this task for "translation"
        self.model = _with_defaults(model, _DEFAULT_TRANSLATION if task == "translation" else task)
        config = self.model.generation_config
        self._num_beams = _NUM_BEAMS if config.do_sample else config.beam_size
        self.prefix = "" if self.model.prompts.prefix else prefix
        self._names_languages = task.startswith("translation_")
        self.key = _RESULT_KEYS[task.partition("_")[0]]

    def compute(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        texts = [self.prefix + text for text in check_texts(inputs)]
        given = {name: value for name, value in options.items() if name not in _LANGUAGES}
        if given.get("do_sample") is False and not {"num_beams", "beam_size"} & given.keys():
            given["num_beams"] = self._num_beams
        source, target = self._languages(options)
        outputs = self.model.generate(texts, source_lang=source, target_lang=target, return_details=True, **given)
        count = given.get("num_return_sequences") or 1
        return [[{self.key: one.text} for one in (output.n_best or (output,))[:count]] for output in outputs]

    def several(self, results: list[Any]) -> list[Any]:
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def _is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str)

    def _languages(self, options: Mapping[str, Any]) -> tuple[str | None, str | None]:
        if not self.model.tokenizer.languages:
            return None, None
        source, target = options.get("src_lang"), options.get("tgt_lang")
        if source is None and target is None and self._names_languages:
            _, source, _, target = self.task.split("_")
        return source, target


def _with_defaults(model: TextToText, task: str) -> TextToText:
    """Return the model with the default options of the pipeline, and those that it describes for the task."""
    config = model.generation_config
    sets_length = config.max_length not in (None, _UNSET_LENGTH)
    changed = config if config.do_sample else config.updated(beam_size=_NUM_BEAMS)
    pipeline = copy.copy(model)
    pipeline.generation_config = _with_length(changed, sets_length)
    if task in pipeline.prompts.tasks:
        pipeline = pipeline.for_task(task)
        pipeline.generation_config = _with_length(pipeline.generation_config, sets_length)
    return pipeline


def _with_length(config: GenerationConfig, sets_length: bool) -> GenerationConfig:
    if sets_length:
        return replace(config, max_new_tokens=None)
    return replace(config, max_length=None, max_new_tokens=_MAX_NEW_TOKENS)
