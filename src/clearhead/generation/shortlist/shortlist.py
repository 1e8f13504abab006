"""A vocabulary shortlist, and its file next to a model's weights."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import safetensors
import torch
from jaxtyping import Bool, Int
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from clearhead.generation.state import AllowedTokens
from clearhead.io.atomic import atomic_file
from clearhead.io.reading import check_no_pipe
from clearhead.models.config import Seq2SeqConfig
from clearhead.tokenizers.base import TextTokenizer

FILE = "shortlist.safetensors"
"""Name of the file in a model's folder."""

_FORMAT = "1"


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that may translate each source token.

    Source: Jean et al. 2015, "On Using Very Large Target Vocabulary for Neural Machine Translation", Section 3.3

    Args:
        starts_S: where the tokens of each source token begin in `tokens_T`, and their end.
        tokens_T: target tokens.
        common_C: target tokens that every target may have, ascending.
        target_size: number of target tokens in the vocabulary.
    """

    starts_S: Int[Tensor, "S"]
    tokens_T: Int[Tensor, "T"]
    common_C: Int[Tensor, "C"]
    target_size: int

    def allowed(self, sources: Sequence[Sequence[int]]) -> list[AllowedTokens]:
        """Return for each source the tokens that its target may have.

        They depend on this source only, so outputs do not depend on the batch.

        Args:
            sources: token ids of each source.
        """
        tokens_T, starts_S, is_common_V = self._arrays
        allowed: list[AllowedTokens] = []
        for source in sources:
            is_extra_V = np.zeros(self.target_size, dtype=bool)
            for token in set(source):
                is_extra_V[tokens_T[starts_S[token] : starts_S[token + 1]]] = True
            is_extra_V &= ~is_common_V
            allowed.append(AllowedTokens(self.common_C, torch.from_numpy(is_extra_V.nonzero()[0])))
        return allowed

    @cached_property
    def _arrays(self) -> tuple[Int[np.ndarray, "T"], list[int], Bool[np.ndarray, "V"]]:
        """The tokens, where those of each source token begin, and which are common."""
        is_common_V = np.zeros(self.target_size, dtype=bool)
        is_common_V[self.common_C.numpy()] = True
        return self.tokens_T.numpy(), self.starts_S.tolist(), is_common_V


def write_shortlist(path: Path, shortlist: Shortlist, tokenizer: TextTokenizer, config: Seq2SeqConfig) -> None:
    """Write a shortlist.

    Args:
        path: the file.
        shortlist: the shortlist.
        tokenizer, config: tokenizer and config of the model that it is for.
    """
    tensors = {name: getattr(shortlist, name).to(torch.int32).contiguous() for name in _tensor_names()}
    metadata = {"format": _FORMAT, "vocabulary": _hash(tokenizer, config)}
    with atomic_file(path) as file:
        file.write(save(tensors, metadata))


def read_shortlist(path: Path, tokenizer: TextTokenizer, config: Seq2SeqConfig) -> Shortlist:
    """Return the shortlist of a model.

    Args:
        path: the file.
        tokenizer, config: the model's tokenizer and config.

    Raises:
        ValueError: the file does not exist, is a pipe or damaged, or was made for another vocabulary.
    """
    fix = "run `clearhead shortlist` again"
    check_no_pipe(path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata, tensors = dict(file.metadata() or {}), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"there is no {path}; run `clearhead shortlist` to make it") from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}; {fix}") from None
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path} was written by another version of clearhead; {fix}")
    if metadata.get("vocabulary") != _hash(tokenizer, config):
        raise ValueError(f"{path} was made for another vocabulary than the model's; {fix}")
    source_size, target_size = _sizes(config)
    if sorted(tensors) != sorted(_tensor_names()) or not all(_is_index(tensor) for tensor in tensors.values()):
        raise ValueError(f"{path} is damaged: it has other tensors than a shortlist; {fix}")
    shortlist = Shortlist(
        tensors["starts_S"].long(), tensors["tokens_T"].long(), tensors["common_C"].long(), target_size
    )
    starts_S, tokens_T, common_C = shortlist.starts_S, shortlist.tokens_T, shortlist.common_C
    is_valid = (
        len(starts_S) == source_size + 1
        and int(starts_S[0]) == 0
        and int(starts_S[-1]) == len(tokens_T)
        and bool((starts_S.diff() >= 0).all())
        and all(bool(((ids >= 0) & (ids < target_size)).all()) for ids in (tokens_T, common_C))
    )
    if not is_valid:
        raise ValueError(f"{path} is damaged: its tokens are outside the vocabulary; {fix}")
    if not bool((common_C.diff() > 0).all()):  # the kernels have room for each token once
        raise ValueError(f"{path} is damaged: its common tokens are not ascending; {fix}")
    return shortlist


def _tensor_names() -> list[str]:
    return [field.name for field in fields(Shortlist) if field.name != "target_size"]


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int32 and tensor.dim() == 1


def _sizes(config: Seq2SeqConfig) -> tuple[int, int]:
    return config.vocab_size, config.target_vocab_size or config.vocab_size


def _hash(tokenizer: TextTokenizer, config: Seq2SeqConfig) -> str:
    """Return a hash of the target vocabulary, and of the ids of its tokens as sources."""
    tokens = tokenizer.ids_to_tokens(range(_sizes(config)[1]))
    sources = [
        encoded.ids for encoded in tokenizer.encode([token or " " for token in tokens[:: len(tokens) // 100 + 1]])
    ]
    return hashlib.sha256(json.dumps([_sizes(config), tokens, sources]).encode()).hexdigest()[:16]
