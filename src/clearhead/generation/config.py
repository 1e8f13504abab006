"""How to generate, as a value, and as generation_config.json says it. Names and meanings are transformers'."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from clearhead.checkpoints.seq2seq_family import GENERATION_KEYS
from clearhead.io.json import read_json, write_json

DEFAULT_NEW_TOKENS = 256
"""New tokens at most, where neither the caller nor the checkpoint says."""

MOST_LENGTH_PENALTY = 30
"""Beyond it the power of a length leaves the range of numbers; useful ones lie between −2 and 3."""


class GenerationOptions(TypedDict, total=False):
    """What a call may say of the settings; the meanings are told in `GenerationConfig`, None says nothing."""

    beam_size: int | None
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


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How to generate. Lengths are in tokens and, but for `max_new_tokens` and `min_new_tokens`, count the start token.

    Args:
        beam_size: hypotheses that are kept at each step; 1 is greedy search (transformers' num_beams).
        max_new_tokens: longest output, its end token included; None for what max_length leaves.
        max_length: longest target; None for no limit but the model's and 256 new tokens.
        min_new_tokens, min_length: before so many, the end token cannot come.
        length_penalty: a hypothesis' log-probability is divided by its length to this power: above 0 favours long ones.
        early_stopping: when a sentence's beams stop. True: as soon as beam_size hypotheses have ended. False: when the
            best running one, at its length, is no better than the worst of these. "never": when it could not become
            so at any length.
        no_repeat_ngram_size: no n-gram of this size comes twice; 0 for any.
        encoder_no_repeat_ngram_size: no n-gram of this size of the source comes; 0 for any.
        repetition_penalty: scores of tokens that were there are divided by this if positive, else multiplied.
        renormalize_logits: scores are made log-probabilities again after what the other settings do to them.
        bad_words_ids: sequences of ids that must not come.
        forced_bos_token_id: the id of the first new token, such as a language; None for none.
        forced_eos_token_id: the ids of which one ends a target of the greatest length; () for none.
        num_return_sequences: outputs for each text: so many samples, or so many of the best hypotheses, if there are.
        do_sample: draw each token at random instead of searching.
        temperature: logits are divided by this before a draw.
        top_k: only so many of the most probable tokens are drawn from; 0 for all.
        top_p: only the most probable tokens that together reach this probability are drawn from.
        seed: of the draws; None for another at each call. Within a call, a text that comes twice gives the same sample.
        start_id, eos_ids: as in `Seq2SeqConfig`, where they differ from the model's; None where not.

    Raises:
        ValueError: a number out of range; a least length above the greatest; sampling with beams; more outputs than
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
        for name in ("beam_size", "num_return_sequences", "max_new_tokens", "max_length"):
            _check(self, name, 1, int)
        for name in ("min_length", "min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "top_k"):
            _check(self, name, 0, int)
        for name in ("repetition_penalty", "temperature", "top_p"):
            _check(self, name, 0, float)
            if getattr(self, name) == 0 or (name == "top_p" and self.top_p > 1):
                wanted = "from above 0 to 1" if name == "top_p" else "above 0"
                raise ValueError(f"{name} must be {wanted}; got {getattr(self, name)}")
        _check(self, "length_penalty", -math.inf, float)
        if abs(self.length_penalty) > MOST_LENGTH_PENALTY:
            raise ValueError(f"length_penalty lies within ±{MOST_LENGTH_PENALTY}; got {self.length_penalty}")
        for name in ("do_sample", "renormalize_logits"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} is true or false; got {getattr(self, name)!r}")
        if self.eos_ids == ():
            raise ValueError("eos_ids, the ids that end an output, are one or more; got none")
        if self.early_stopping != "never" and type(self.early_stopping) is not bool:
            raise ValueError(f'early_stopping is True, False or "never"; got {self.early_stopping!r}')
        for least, greatest in (("min_new_tokens", "max_new_tokens"), ("min_length", "max_length")):
            low, high = getattr(self, least), getattr(self, greatest)
            if low is not None and high is not None and low > high:
                raise ValueError(f"{least}={low} is more than {greatest}={high}: no output could be so long")
        if not all(self.bad_words_ids):
            raise ValueError("bad_words_ids holds sequences of one token id or more; got an empty one")
        if self.do_sample and self.beam_size > 1:
            raise ValueError(f"sampling draws one token at a time and takes beam_size=1; got {self.beam_size}")
        if not self.do_sample and self.num_return_sequences > self.beam_size:
            raise ValueError(
                f"num_return_sequences={self.num_return_sequences} is more than beam_size={self.beam_size}; "
                "a search gives no more outputs than it has beams"
            )

    @classmethod
    def from_folder(cls, folder: Path, beam_size: int = 5) -> "GenerationConfig":
        """What a checkpoint says: its generation_config.json, or the keys that older files have in config.json.

        Args:
            folder: the checkpoint's.
            beam_size: where the checkpoint says nothing.

        Raises:
            ValueError: a value that is wrong, or a key that changes what is generated and is not understood.
        """
        path = folder / "generation_config.json"
        if path.is_file():
            return read_settings(read_json(path), beam_size, str(path))
        data = read_json(folder / "config.json")
        old = {key: value for key, value in data.items() if key in GENERATION_KEYS}
        if old.pop("force_bos_token_to_be_generated", False):
            old.setdefault("forced_bos_token_id", data.get("bos_token_id", 0))
        return read_settings(old, beam_size, str(folder / "config.json"))

    def changed(self, **options: Unpack[GenerationOptions]) -> "GenerationConfig":
        """These settings with what is given, where it is not None.

        Samples are drawn with one beam, unless another number is asked for; a length that is given counts in place of
        the one in the file.

        Raises:
            TypeError: an option that there is not.
            ValueError: as in the class.
        """
        unknown = sorted(set(options) - GenerationOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"no option {unknown[0]!r}; these are: {', '.join(GenerationOptions.__annotations__)}")
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if "bad_words_ids" in given:
            given["bad_words_ids"] = tuple(tuple(words) for words in given["bad_words_ids"])
        ends = given.get("forced_eos_token_id")
        if ends is not None:
            given["forced_eos_token_id"] = (ends,) if isinstance(ends, int) else tuple(ends)
        if given.get("do_sample"):
            given.setdefault("beam_size", 1)
        if given.get("beam_size", 1) > 1:
            given.setdefault("do_sample", False)
        if "num_return_sequences" not in given and not given.get("do_sample", self.do_sample):
            given["num_return_sequences"] = min(self.num_return_sequences, given.get("beam_size", self.beam_size))
        greatest = given.get("max_new_tokens", given.get("max_length"))
        if (
            greatest is not None and "min_new_tokens" not in given
        ):  # least lengths of a file give way to a greatest one that is asked for
            given.setdefault("min_length", min(self.min_length, greatest))
            if self.min_new_tokens is not None:
                given.setdefault("min_new_tokens", min(self.min_new_tokens, max(0, greatest - 1)))
        for new, old in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
            if new in given:
                given.setdefault(old, None if old == "max_length" else 0)
            elif old in given:
                given[new] = None
        return replace(self, **given)

    def check_ids(self, vocabulary: int) -> None:
        """Raises a ValueError for a token id that the settings name and the vocabulary does not have."""
        named = {
            "bad_words_ids": [number for words in self.bad_words_ids for number in words],
            "forced_bos_token_id": [] if self.forced_bos_token_id is None else [self.forced_bos_token_id],
            "forced_eos_token_id": self.forced_eos_token_id,
            "eos_token_id": self.eos_ids or (),
            "decoder_start_token_id": [] if self.start_id is None else [self.start_id],
        }
        for name, ids in named.items():
            for number in ids:
                if type(number) is not int or not 0 <= number < vocabulary:
                    raise ValueError(f"{name} holds {number!r}; token ids lie in 0 … {vocabulary - 1}")

    def greatest_length(self, prompt: int, longest: int | None) -> int:
        """The greatest length of a target with its prompt.

        Args:
            prompt: tokens that are given: the start token, and what is forced after it.
            longest: the longest target that the model takes; None for any.
        """
        if self.max_new_tokens is not None:
            wanted = prompt + self.max_new_tokens
        else:
            wanted = prompt + DEFAULT_NEW_TOKENS if self.max_length is None else self.max_length
        length = wanted if longest is None else min(wanted, longest)
        if length <= prompt:
            raise ValueError(f"{prompt} tokens are given, and a target has at most {length}: nothing can be generated")
        least = max(self.min_length, prompt + (self.min_new_tokens or 0))
        if least > length:
            raise ValueError(f"outputs shall have at least {least - prompt} new tokens and at most {length - prompt}")
        return length

    def write(self, folder: Path, *, pad_id: int, start_id: int, eos_ids: tuple[int, ...]) -> None:
        """Writes generation_config.json as transformers reads it."""
        data: dict[str, Any] = {"num_beams": self.beam_size}
        for part in fields(self):
            value = getattr(self, part.name)
            if part.name not in ("beam_size", "seed", "start_id", "eos_ids") and value not in (part.default, None):
                data[part.name] = [list(words) for words in value] if part.name == "bad_words_ids" else value
        eos_ids = self.eos_ids or eos_ids
        ends = self.forced_eos_token_id
        if ends:
            data["forced_eos_token_id"] = ends[0] if len(ends) == 1 else list(ends)
        data["decoder_start_token_id"] = start_id if self.start_id is None else self.start_id
        data |= {"eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids), "pad_token_id": pad_id}
        write_json(folder / "generation_config.json", data)


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "num_beam_groups": (1,),
    "diversity_penalty": (0, 0.0),
    "typical_p": (1, 1.0),
    "min_p": (0, 0.0),
    "top_h": (),
    "epsilon_cutoff": (0, 0.0),
    "eta_cutoff": (0, 0.0),
    "penalty_alpha": (0, 0.0),
    "encoder_repetition_penalty": (1, 1.0),
    "guidance_scale": (1, 1.0),
    "remove_invalid_values": (False,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "constraints": (),
    "force_words_ids": (),
    "dola_layers": (),
    "watermarking_config": (),
    "stop_strings": (),
    "max_time": (),
    "token_healing": (False,),
}
"""Keys that would change what is generated, with the values besides null at which they do not."""

_SILENT = frozenset(
    {
        *("transformers_version", "_from_model_config", "bos_token_id", "pad_token_id", "use_cache", "low_memory"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        *("cache_implementation", "cache_config", "compile_config", "disable_compile", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit"),
        *("assistant_lookbehind", "target_lookbehind", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("generation_kwargs", "_commit_hash", "is_assistant", "prefill_chunk_size", "return_legacy_cache"),
    }
)
"""Keys that never change what is generated."""


def read_settings(data: Mapping[str, Any], beam_size: int, where: str) -> GenerationConfig:
    """The settings that the keys of a generation_config.json say; those of a task are the same.

    Raises:
        ValueError: a value that is wrong, or a key that changes what is generated and is not understood.
    """
    values: dict[str, Any] = {"beam_size": beam_size}
    names = {part.name for part in fields(GenerationConfig)} - {"beam_size", "seed", "start_id", "eos_ids"}
    for key, value in data.items():
        if value is None or key in _SILENT:
            continue
        if key in _NEUTRAL:
            if value not in _NEUTRAL[key]:
                raise ValueError(f"{where} says {key}={value!r}, which changes what is generated and is not supported")
        elif key in ("temperature", "top_p") and value == 0 and not data.get("do_sample"):
            continue  # some files say so of a search, where it says nothing
        elif key == "num_beams":
            values["beam_size"] = value
        elif key == "decoder_start_token_id":
            values["start_id"] = _ids(value)[0]
        elif key == "eos_token_id":
            values["eos_ids"] = _ids(value)
        elif key == "forced_eos_token_id":
            values[key] = _ids(value)
        elif key == "bad_words_ids":
            values[key] = tuple(_ids(words) for words in (value if isinstance(value, list) else [[value]]))
        elif key == "forced_bos_token_id":
            (values[key],) = _ids(value)[:1] or (None,)
        elif key in names:
            values[key] = value
        else:
            raise ValueError(
                f"{where} says {key}={value!r}, which is not known here and may change what is generated; "
                "if it does not, take it out of the file"
            )
    if values.get("do_sample") and "num_beams" not in data:
        values["beam_size"] = 1
    if values["beam_size"] == 1 and values.get("num_return_sequences", 1) > 1 and not values.get("do_sample"):
        values["num_return_sequences"] = 1
    try:
        return GenerationConfig(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _ids(value: object) -> tuple[int, ...]:
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not all(type(number) is int for number in ids):
        raise ValueError(f"token ids are whole numbers; got {value!r}")
    return ids


def _check(config: GenerationConfig, name: str, least: int | float, kind: type) -> None:
    value = getattr(config, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float) or not value >= least:
        wanted = "a whole number" if kind is int else "a number"
        bound = "" if least == -math.inf else f" of at least {least}"
        raise ValueError(f"{name} must be {wanted}{bound}; got {value!r}")
