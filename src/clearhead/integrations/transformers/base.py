"""Inputs and outputs that all pipelines have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from clearhead.choices import refuse_unknown

_CHUNK = 64
"""Number of inputs of a stream that are computed together."""

_IGNORED = frozenset({"batch_size", "num_workers", "truncation", "padding", "clean_up_tokenization_spaces"})
"""Options that change no result here: batches are formed by tokens, and long texts are always truncated."""

_HINTS = {
    "tokenize_kwargs": "Long texts are truncated at the maximum length of the model",
    "stop_sequence": "Cut the text of the result",
    "assistant_model": "Outputs do not depend on it",
    "return_tensors": "The result holds texts and numbers only",
    "return_text": "The result always holds the text",
    "return_type": "The result always holds the text",
    "generation_config": "Pass its options as keywords, such as num_beams=4",
}


class TextPipeline(ABC):
    """A pipeline that can be called as one of transformers 4.

    Args:
        task: name of the task.
        defaults: options of every call, which the options of a call replace.

    Raises:
        TypeError: an unknown option.
    """

    options: tuple[str, ...] = ()
    """Names of the options of a call."""

    def __init__(self, task: str, defaults: Mapping[str, Any]) -> None:
        self.task = task
        self.defaults = self._checked(defaults)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Compute the result for one input, or a list of results for a list of inputs.

        Args:
            inputs: an input; a list or tuple of inputs; or a generator or a data set, whose results are yielded.
            options: options of the task.

        Raises:
            TypeError: an unknown option.
            ValueError: an input that is not a text, or an option out of range.
        """
        given = self.defaults | self._checked(options)
        if self._is_single(inputs):
            (result,) = self.compute([inputs], given)
            return self.single(inputs, result, options)
        if isinstance(inputs, list | tuple):
            return self.several(self.compute(list(inputs), given))
        if not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__"):
            raise ValueError(f"expected a text or a list of texts, got {type(inputs).__name__}")
        return self._stream(iter(inputs), given)

    @abstractmethod
    def compute(self, inputs: list[Any], options: Mapping[str, Any]) -> list[Any]:
        """Return the result for each input."""

    def single(self, inputs: Any, result: Any, options: Mapping[str, Any]) -> Any:
        """Return the result of a call with one input, from its result in a list of inputs and the call's options."""
        return result

    def several(self, results: list[Any]) -> list[Any]:
        """Return the result of a call with a list of inputs."""
        return results

    def _is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping)

    def _stream(self, inputs: Iterator[Any], options: Mapping[str, Any]) -> Iterator[Any]:
        while chunk := list(islice(inputs, _CHUNK)):
            yield from self.compute(chunk, options)

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in options.items() if name not in _IGNORED}
        unknown = {name: value for name, value in kept.items() if name not in self.options}
        refuse_unknown(f"the pipeline {self.task}", unknown, self.options, _HINTS)
        return kept
