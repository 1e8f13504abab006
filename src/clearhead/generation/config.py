"""Generation options as a value. Names and meanings are those of transformers."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from clearhead.choices import refuse_unknown

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NEW_TOKENS = 256
"""Maximum number of new tokens, if neither the caller nor the checkpoint limits them."""

MAX_LENGTH_PENALTY = 30
"""Beyond it, the power of a length overflows; useful penalties lie between −2 and 3."""

_HINTS = {
    "n_best": "Use num_return_sequences with return_details=True; each result lists its outputs in n_best",
    "batch_size": "Batches are formed by tokens, and results do not depend on them; leave it out",
    "num_beam_groups": "Diverse beam search is not supported; use do_sample=True for varied outputs",
    "diversity_penalty": "Diverse beam search is not supported; use do_sample=True for varied outputs",
    "output_scores": "Use return_details=True: log_probs has the log-probability of each token",
    "return_dict_in_generate": "Use return_details=True",
    "output_attentions": "Use clearhead.watch for attention weights",
    "src_lang": "Use source_lang",
    "tgt_lang": "Use target_lang",
    "truncation": "Long texts are truncated with a warning; strict=True raises an error instead",
    "show_progress": "Count the outputs of generate_iter(), or use `clearhead translate --output`",
    "show_progress_bar": "Count the outputs of generate_iter(), or use `clearhead translate --output`",
    "streamer": "Use stream() for one token at a time",
    "generator": "Use seed",
    "skip_special_tokens": "Outputs never contain special tokens; leave it out",
    "input_ids": "Give the texts; generate() tokenizes them",
    "attention_mask": "Give the texts; generate() tokenizes and masks them",
    "eos_token_id": "Set it in generation_config.json or in the GenerationConfig (eos_ids)",
    "decoder_start_token_id": "Set it in generation_config.json or in the GenerationConfig (start_id)",
}
"""Options of transformers that this library names differently or does not have."""


class GenerationOptions(TypedDict, total=False):
    """Options of one call, as in `GenerationConfig`; None keeps the value of the config.

    `num_beams`, as transformers names it, is `beam_size`.
    """

    beam_size: int | None
    num_beams: int | None
    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    min_length: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    repetition_penalty: float | None
    renormalize_logits: bool | None
    bad_words_ids: Sequence[Sequence[int]] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int] | None
    num_return_sequences: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None


def show_generation_options(function: F) -> F:
    """Show the options of `GenerationOptions` in the signature of a function that takes them as `**options`."""
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in GenerationOptions.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Options of a search. Lengths are in tokens and include the start token, except in the `..._new_tokens` options.

    Args:
        beam_size: number of hypotheses kept at each step; 1 is greedy search (transformers' num_beams).
        max_new_tokens: longest output, including its end token; None for the room that max_length leaves.
        max_length: longest target; None for the model's limit and 256 new tokens.
        min_new_tokens, min_length: the end token is forbidden before this length.
        length_penalty: a hypothesis' log-probability is divided by its length to this power; above 0 favors long ones.
        early_stopping: when the search for a sentence stops. True: as soon as beam_size hypotheses are finished.
            False: when the best running hypothesis, at its current length, is not better than the worst finished one.
            "never": when it could not become better at any length.
        no_repeat_ngram_size: no n-gram of this size occurs twice; 0 for no limit.
        encoder_no_repeat_ngram_size: no n-gram of this size of the source occurs; 0 for no limit.
        repetition_penalty: scores of tokens that already occur are divided by this if positive, else multiplied.
        renormalize_logits: whether the processed scores are turned into log-probabilities again.
        bad_words_ids: token id sequences that must not occur.
        forced_bos_token_id: id of the first new token, such as a language; None for none.
        forced_eos_token_id: ids of which one is forced at the end of a target of the maximum length; () for none.
        num_return_sequences: number of outputs for each text: samples, or the best hypotheses, if there are enough.
        do_sample: draw each token at random instead of searching.
        temperature: logits are divided by this before drawing.
        top_k: draw only from this many of the most probable tokens; 0 for all.
        top_p: draw only from the most probable tokens whose probabilities sum to this.
        seed: seed of the draws; None for another one at each call. Equal texts in one call give equal samples.
        start_id, eos_ids: as in `Seq2SeqConfig`, where they differ from the model's; None where they do not.

    Raises:
        ValueError: a value out of range; a minimum length above the maximum; sampling with beams; more outputs than
            beams.

    >>> from clearhead import GenerationConfig
    >>> GenerationConfig(length_penalty=0.6).beam_size
    5
    """

    beam_size: int = 5
    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    renormalize_logits: bool = False
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    num_return_sequences: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int | None = None
    start_id: int | None = None
    eos_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_combinations()

    def _check_ranges(self) -> None:
        for name in ("beam_size", "num_return_sequences", "max_new_tokens", "max_length"):
            _check_number(name, getattr(self, name), 1, int)
        for name in ("min_length", "min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "top_k"):
            _check_number(name, getattr(self, name), 0, int)
        for name in ("repetition_penalty", "temperature", "top_p"):
            _check_number(name, getattr(self, name), 0, float)
            if getattr(self, name) == 0 or (name == "top_p" and self.top_p > 1):
                expected = "from above 0 to 1" if name == "top_p" else "above 0"
                raise ValueError(f"{name} must be {expected}; got {getattr(self, name)}")
        _check_number("length_penalty", self.length_penalty, -math.inf, float)
        if abs(self.length_penalty) > MAX_LENGTH_PENALTY:
            raise ValueError(f"length_penalty must be within ±{MAX_LENGTH_PENALTY}; got {self.length_penalty}")
        for name in ("do_sample", "renormalize_logits"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be true or false; got {getattr(self, name)!r:.80}")
        if self.early_stopping != "never" and type(self.early_stopping) is not bool:
            raise ValueError(f'early_stopping must be True, False or "never"; got {self.early_stopping!r}')
        if self.eos_ids == ():
            raise ValueError("eos_ids, the ids that end an output, must not be empty")
        if not all(self.bad_words_ids):
            raise ValueError("bad_words_ids holds sequences of one token id or more; got an empty one")

    def _check_combinations(self) -> None:
        for low_name, high_name in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
            low, high = getattr(self, low_name), getattr(self, high_name)
            if low is not None and high is not None and low > high:
                raise ValueError(f"{low_name}={low} is more than {high_name}={high}: no output can have such a length")
        if self.do_sample and self.beam_size > 1:
            raise ValueError(f"sampling draws one token at a time and requires beam_size=1; got {self.beam_size}")
        if not self.do_sample and self.num_return_sequences > self.beam_size:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} is more than beam_size={self.beam_size}; "
                "a search returns at most beam_size outputs"
            )

    @show_generation_options
    def updated(self, **options: Unpack[GenerationOptions]) -> "GenerationConfig":
        """Return a config with the given options; None keeps the value of this config.

        An option also changes the values of this config that contradict it:

        - do_sample sets beam_size to 1, and several beams turn sampling off.
        - A search returns at most beam_size outputs.
        - A maximum length limits this config's minimum lengths.
        - max_new_tokens replaces max_length and the reverse; so do min_new_tokens and min_length.

        Raises:
            TypeError: an unknown option.
            ValueError: as in the class; beam_size and num_beams that differ.
        """
        known = GenerationOptions.__annotations__
        unknown = {name: value for name, value in options.items() if name not in known}
        refuse_unknown("generate", unknown, tuple(known), _HINTS)
        explicit = {name: _as_field(name, value) for name, value in options.items() if value is not None}
        if "num_beams" in explicit:
            beams = explicit.pop("num_beams")
            if explicit.setdefault("beam_size", beams) != beams:
                raise ValueError(f"beam_size={explicit['beam_size']} contradicts num_beams={beams}; give one of them")
        return replace(self, **(self._implied_by(explicit) | explicit))

    def _implied_by(self, explicit: dict[str, Any]) -> dict[str, Any]:
        """Return the values that options imply for the fields that they do not name."""
        implied: dict[str, Any] = {}
        if explicit.get("do_sample"):
            implied["beam_size"] = 1
        if explicit.get("beam_size", 1) > 1:
            implied["do_sample"] = False
        after = {"do_sample": self.do_sample, "beam_size": self.beam_size} | implied | explicit
        if not after["do_sample"]:
            implied["num_return_sequences"] = min(self.num_return_sequences, after["beam_size"])
        maximum = explicit.get("max_new_tokens", explicit.get("max_length"))
        if "max_new_tokens" in explicit:
            implied["max_length"] = None
        elif "max_length" in explicit:
            implied["max_new_tokens"] = None
        if "min_new_tokens" in explicit:
            implied["min_length"] = 0
        elif maximum is not None:
            implied["min_length"] = min(self.min_length, maximum)
            if self.min_new_tokens is not None:
                implied["min_new_tokens"] = min(self.min_new_tokens, max(0, maximum - 1))
        elif "min_length" in explicit:
            implied["min_new_tokens"] = None
        return implied

    def check_ids(self, vocab_size: int) -> None:
        """Check that the vocabulary contains every token id of this config.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        for name, token_id in self._token_ids():
            if type(token_id) is not int or not 0 <= token_id < vocab_size:
                raise ValueError(f"{name} holds {token_id!r:.80}; token ids are 0 to {vocab_size - 1}")

    def _token_ids(self) -> Iterator[tuple[str, int | None]]:
        yield from (("bad_words_ids", token_id) for words in self.bad_words_ids for token_id in words)
        if self.forced_bos_token_id is not None:
            yield "forced_bos_token_id", self.forced_bos_token_id
        yield from (("forced_eos_token_id", token_id) for token_id in self.forced_eos_token_id)
        yield from (("eos_token_id", token_id) for token_id in self.eos_ids or ())
        if self.start_id is not None:
            yield "decoder_start_token_id", self.start_id

    def max_target_length(self, prefix_length: int, model_max_length: int | None) -> int:
        """Return the maximum length of a target, including its prefix.

        Args:
            prefix_length: number of given tokens: the start token, and a forced prefix after it.
            model_max_length: longest target of the model; None for no limit.

        Raises:
            ValueError: the maximum length leaves no room for a new token, or is below the minimum length.
        """
        if self.max_new_tokens is not None:
            length = prefix_length + self.max_new_tokens
        else:
            length = prefix_length + DEFAULT_NEW_TOKENS if self.max_length is None else self.max_length
        if model_max_length is not None:
            length = min(length, model_max_length)
        if length <= prefix_length:
            raise ValueError(
                f"{prefix_length} tokens are given, and a target has at most {length}: nothing can be generated"
            )
        minimum = self.min_target_length(prefix_length)
        if minimum > length:
            raise ValueError(
                f"outputs must have at least {minimum - prefix_length} new tokens and at most {length - prefix_length}"
            )
        return length

    def min_target_length(self, prefix_length: int) -> int:
        """Return the minimum length of a target, including its prefix of this length."""
        return max(self.min_length, prefix_length + (self.min_new_tokens or 0))


def _as_field(name: str, value: Any) -> Any:
    """Convert the value of an option to the type of the field."""
    if name == "bad_words_ids":
        return tuple(tuple(words) for words in value)
    if name == "forced_eos_token_id":
        return (value,) if isinstance(value, int) else tuple(value)
    return value


def _check_number(name: str, value: object, minimum: int | float, kind: type) -> None:
    if value is None:
        return
    number = isinstance(value, int) if kind is int else isinstance(value, int | float)
    if isinstance(value, bool) or not number or not value >= minimum:  # type: ignore[operator]
        expected = "a whole number" if kind is int else "a number"
        bound = "" if minimum == -math.inf else f" of at least {minimum}"
        raise ValueError(f"{name} must be {expected}{bound}; got {value!r:.80}")
