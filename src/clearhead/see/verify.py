"""The certificate of a checkpoint: what should change nothing is tried, and changes nothing."""

import contextlib
import copy
import hashlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints import directory
from clearhead.checkpoints.family import Family
from clearhead.checkpoints.seq2seq import Seq2SeqFamily
from clearhead.equations import attention, masks
from clearhead.generation.beam import beam_search
from clearhead.generation.decoding import Decoding
from clearhead.generation.greedy import greedy_search
from clearhead.generation.settings import GenerationConfig
from clearhead.layers import attention as attention_layers
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq
from clearhead.run import prepacked
from clearhead.run.packing import packed_batches
from clearhead.run.precision import sibling
from clearhead.text.interface import Tokens

_EXACT, _PARITY, _COSINE = 1e-6, 1e-5, 0.9995
_LENGTHS = (9, 4, 12, 1, 7)
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Check:
    """One thing that was tried.

    Args:
        name: what was tried, such as "padding on the right".
        measured: what the error is of, such as "largest distance, of the norm".
        error: what was found; None where it could not be tried.
        bound: what it may be at most.
        holds: whether it is within the bound; True where it could not be tried.
        note: why it could not be tried, or what went wrong.
    """

    name: str
    measured: str
    error: float | None
    bound: float
    holds: bool
    note: str = ""


@dataclass(frozen=True)
class Certificate:
    """All checks of a model, with what they were made of.

    Args:
        model: the model's name, as it was given.
        checks: what was tried.
        versions: of Python and the libraries.
        files: the SHA-256 of the model's files.

    >>> from clearhead import verify
    >>> certificate = verify("tatoeba-en-de")  # doctest: +SKIP
    >>> certificate.holds, certificate.checks[0].error  # doctest: +SKIP
    (True, 0.0)
    """

    model: str
    checks: tuple[Check, ...]
    versions: dict[str, str]
    files: dict[str, str]

    @property
    def holds(self) -> bool:
        """Whether every check does."""
        return all(check.holds for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {"holds": self.holds, **asdict(self)}


def verify(model: str | Path, against: str | None = None) -> Certificate:
    """Tries a checkpoint in every way that should not matter, and compares it with the library that it came from.

    Computed in float32 on the CPU, with token ids drawn from a fixed seed.

    Args:
        model: a folder, or a Hub id.
        against: "transformers" to insist on the comparison; None makes it where that library is installed.

    Returns:
        The certificate. A failed check is in it, and no error.

    Raises:
        ValueError: no such model, one that is not understood, or a library to compare with that is not installed.

    >>> from clearhead import verify
    >>> verify("all-MiniLM-L6-v2").holds  # doctest: +SKIP
    True
    """
    folder = directory.find(model)
    there = _installed("transformers")
    if against is not None and against != "transformers":
        raise ValueError(f"a model is compared with transformers; got {against!r}")
    if against is not None and not there:
        raise ValueError("transformers is not installed: pip install transformers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if checkpoints.is_seq2seq(folder):
            checks = _Seq2SeqChecks(folder, *checkpoints.load_seq2seq(folder)).all(there)
        else:
            checks = _EncoderChecks(folder, *checkpoints.load_encoder(folder)).all(there)
    hashes = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")}
    hashes.pop("certificate.json", None)
    return Certificate(str(model), tuple(checks), _versions(), hashes)


class _Checks:
    """What both kinds of models have in common: `states` gives, for each row of ids, vectors to compare."""

    model: nn.Module
    folder: Path
    rows: list[Tensor]

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> list[Tensor]:
        raise NotImplementedError

    def foreign(self) -> list[Tensor]:
        raise NotImplementedError

    def saved(self, folder: Path) -> nn.Module:
        raise NotImplementedError

    @torch.inference_mode()
    def all(self, there: bool) -> list[Check]:
        self.plain = self.states(self.model, self.rows)
        checks = [
            self.near("padding on the right", _EXACT, lambda: self.states(self.model, self.rows, right=7)),
            self.near("padding on the left", _EXACT, lambda: self.states(self.model, self.rows, left=5)),
            self.alone(),
            self.near("another order of the batch", _EXACT, self._reversed),
            self.near("packed = padded", _PARITY, lambda: self.states(self.model, self.rows, packed=True)),
            self.near("fused = explicit attention", _PARITY, self._explicit),
            self._prepacked(),
            self._compiled(),
            self._low(),
            *self.own(),
            self._round_trip(),
        ]
        if there:
            checks.append(self.near("parity with transformers", _PARITY, self.foreign))
        else:
            checks.append(_untried("parity with transformers", _PARITY, "transformers is not installed"))
        return checks

    def own(self) -> list[Check]:
        """Checks of this kind alone."""
        return []

    def alone(self) -> Check:
        """Each text in a batch of its own."""
        return self.near("each text alone", _PARITY, lambda: [self.states(self.model, [row])[0] for row in self.rows])

    def near(
        self, name: str, bound: float, compute: Callable[[], list[Tensor]], plain: list[Tensor] | None = None
    ) -> Check:
        """A check that vectors stay where they are; of whole texts, where nothing but the order of sums differs."""
        measured = "largest distance, of the vector's norm"
        try:
            found = compute()
        except Exception as error:
            return Check(name, measured, None, bound, False, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        pairs = list(zip(found, plain or self.plain, strict=True))
        if bound == _EXACT:
            pairs = [(one.mean(dim=0), other.mean(dim=0)) for one, other in pairs]
        # of tensors, whose maximum is no number if one of them is none
        distances = [((one - other).norm(dim=-1) / other.norm(dim=-1).clamp_min(1e-12)).max() for one, other in pairs]
        return _judged(name, measured, float(torch.stack(distances).max()), bound)

    def _reversed(self) -> list[Tensor]:
        return self.states(self.model, self.rows[::-1])[::-1]

    def _explicit(self) -> list[Tensor]:
        with explicit_attention():
            return self.states(self.model, self.rows)

    def _prepacked(self) -> Check:
        name = "prepacked = plain weights"
        if not prepacked.usable(torch.float32):
            return _untried(name, _PARITY, "this torch has no such operators")
        return self.near(name, _PARITY, lambda: self.states(sibling(self.model, torch.float32, _CPU), self.rows))

    def _compiled(self) -> Check:
        name = "compiled = eager"
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            return _untried(name, _PARITY, "there is no C++ compiler")

        def compiled() -> list[Tensor]:
            model = copy.deepcopy(self.model)
            model.compile(dynamic=True)
            return self.states(model, self.rows)

        return self.near(name, _PARITY, compiled)

    def _low(self) -> Check:
        low = self.states(sibling(self.model, torch.bfloat16, _CPU), self.rows)
        cosines = [
            nn.functional.cosine_similarity(one.float().mean(dim=0), other.mean(dim=0), dim=-1)
            for one, other in zip(low, self.plain, strict=True)
        ]
        error = 1 - float(torch.stack(cosines).min())
        return _judged("bfloat16", "1 - smallest cosine", error, 1 - _COSINE)

    def _round_trip(self) -> Check:
        with tempfile.TemporaryDirectory() as place:
            again = self.saved(Path(place)).state_dict()
        held = self.model.state_dict()
        different = sum(name not in again or not torch.equal(again[name], tensor) for name, tensor in held.items())
        return Check("saved and opened again", "tensors that differ", float(different), 0.0, different == 0)


class _EncoderChecks(_Checks):
    def __init__(self, folder: Path, model: EncoderModel, family: Family) -> None:
        self.folder, self.model, self.family = folder, model, family
        self.rows = _rows(model.config.vocab_size, {model.config.pad_id}, model.config.max_len)

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> list[Tensor]:
        if packed:  # as `encode` does
            tokens = [Tokens(row.tolist(), False) for row in rows]
            (batch,) = packed_batches(tokens, 10**6, model.config, _CPU)
            hidden, keep = batch.unpack(model(batch.ids, batch.mask))
            return [hidden[batch.indices.index(place)][keep[batch.indices.index(place)]] for place in range(len(rows))]
        ids, keep = _padded(rows, model.config.pad_id, left, right)
        return _real(model(ids, masks.padding(keep)), keep)

    def alone(self) -> Check:
        """As `encode` computes it: there a text's vector does not depend on its batch."""
        together = self.states(self.model, self.rows, packed=True)
        return self.near(
            "each text alone",
            _EXACT,
            lambda: [self.states(self.model, [row], packed=True)[0] for row in self.rows],
            together,
        )

    def foreign(self) -> list[Tensor]:
        from transformers import AutoModel

        theirs = AutoModel.from_pretrained(self.folder, dtype=torch.float32).eval()
        ids, keep = _padded(self.rows, self.family_pad())
        return _real(theirs(input_ids=ids, attention_mask=keep.long()).last_hidden_state, keep)

    def family_pad(self) -> int:
        assert isinstance(self.model, EncoderModel)
        return self.model.config.pad_id

    def saved(self, folder: Path) -> nn.Module:
        assert isinstance(self.model, EncoderModel)
        self.family.save(self.model, folder)
        return checkpoints.load_encoder(folder)[0]


class _Seq2SeqChecks(_Checks):
    """The vectors are the logits of drawn targets after each source."""

    def __init__(self, folder: Path, model: Seq2Seq, family: Seq2SeqFamily) -> None:
        self.folder, self.model, self.family = folder, model, family
        self.config = model.config
        special = {self.config.pad_id, self.config.start_id, *self.config.eos_ids}
        self.rows = _rows(self.config.vocab_size, special, self.config.max_len)
        drawn = _rows(self.config.target_vocab_size or self.config.vocab_size, special, self.config.max_len, length=5)
        self.targets = {
            tuple(row.tolist()): torch.cat([torch.tensor([self.config.start_id]), target])
            for row, target in zip(self.rows, drawn, strict=True)
        }

    def _targets(self, rows: Sequence[Tensor]) -> Tensor:
        return torch.stack([self.targets[tuple(row.tolist())] for row in rows])

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> list[Tensor]:
        if packed:
            lengths = [len(row) for row in rows]
            memory = model.encode(torch.cat(list(rows))[None], masks.packed(lengths))[0].split(lengths)
            return [model.decode(self._targets([row]), part[None])[0] for row, part in zip(rows, memory, strict=True)]
        ids, keep = _padded(rows, self.config.pad_id, left, right)
        return list(model(ids, self._targets(rows), masks.padding(keep)))

    def foreign(self) -> list[Tensor]:
        from transformers import AutoModelForSeq2SeqLM

        theirs = AutoModelForSeq2SeqLM.from_pretrained(self.folder, dtype=torch.float32).eval()
        ids, keep = _padded(self.rows, self.config.pad_id)
        targets = self._targets(self.rows)
        return list(theirs(input_ids=ids, attention_mask=keep.long(), decoder_input_ids=targets).logits)

    def saved(self, folder: Path) -> nn.Module:
        assert isinstance(self.model, Seq2Seq)
        self.family.save(self.model, folder)
        return checkpoints.load_seq2seq(folder)[0]

    def own(self) -> list[Check]:
        return [self.near("cached = uncached", _PARITY, self._cached), self._one_beam()]

    def _cached(self) -> list[Tensor]:
        assert isinstance(self.model, Seq2Seq)
        ids, keep = _padded(self.rows, self.config.pad_id)
        memory, cache, targets = (
            self.model.encode(ids, masks.padding(keep)),
            self.model.cache(),
            self._targets(self.rows),
        )
        steps = [
            self.model.decode(targets[:, place : place + 1], memory, None, masks.padding(keep), cache)
            for place in range(targets.shape[1])
        ]
        return list(torch.cat(steps, dim=1))

    def _one_beam(self) -> Check:
        assert isinstance(self.model, Seq2Seq)
        ids, keep = _padded(self.rows, self.config.pad_id)
        prompt, ends = torch.full((len(ids), 1), self.config.start_id), self.config.eos_ids
        greedy = greedy_search(Decoding(self.model, ids, keep, prompt), (), 12, ends, 1.0)
        beams = beam_search(Decoding(self.model, ids, keep, prompt), (), GenerationConfig(beam_size=1), 12, ends)
        different = sum(one.ids != best.ids for one, (best, *_) in zip(greedy, beams, strict=True))
        return Check("one beam = greedy", "outputs that differ", float(different), 0.0, different == 0)


@contextlib.contextmanager
def explicit_attention() -> Iterator[None]:
    """Attention by the explicit equation, in place of the fused kernels."""

    def explicit(
        q: Tensor, k: Tensor, v: Tensor, mask: Any = None, *, drop_prob: float = 0.0, scale: Any = None
    ) -> Any:
        return attention.scaled_dot_product(q, k, v, mask, scale=scale)[0]

    with mock.patch.object(attention_layers, "fused_scaled_dot_product", explicit):
        yield


def _rows(vocabulary: int, special: set[int], longest: int | None, length: int | None = None) -> list[Tensor]:
    """Rows of ids of several lengths, distinct, without special ones."""
    words = torch.tensor([number for number in range(vocabulary) if number not in special])
    lengths = [length or min(size, longest or size) for size in _LENGTHS]
    return [words[torch.randint(len(words), (size,))] for size in lengths]


def _padded(rows: Sequence[Tensor], pad: int, left: int = 0, right: int = 0) -> tuple[Tensor, Tensor]:
    longest = max(len(row) for row in rows) + left + right
    ids, keep = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        start = longest - right - len(row) if left else 0
        ids[number, start : start + len(row)], keep[number, start : start + len(row)] = row, True
    return ids, keep


def _real(states: Tensor, keep: Tensor) -> list[Tensor]:
    return [row[kept] for row, kept in zip(states, keep, strict=True)]


def _judged(name: str, measured: str, error: float, bound: float) -> Check:
    if not math.isfinite(error):
        return Check(name, measured, None, bound, False, "the result is not a number")
    return Check(name, measured, error, bound, error <= bound)


def _untried(name: str, bound: float, why: str) -> Check:
    return Check(name, "not tried", None, bound, True, why)


def _installed(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


def _versions() -> dict[str, str]:
    import importlib.metadata
    import platform

    found = {"python": platform.python_version()}
    for package in ("clearhead", "torch", "transformers", "safetensors"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
