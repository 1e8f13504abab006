"""The linter on a checkpoint: its padding id, its attention, its pooled vector."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints import sentence_transformers
from clearhead.equations import masks
from clearhead.inspection.lint.findings import Finding
from clearhead.inspection.lint.lint import lint
from clearhead.io import hub
from clearhead.io.json import read_json
from clearhead.models import heads
from clearhead.models.config import Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.auto import checked_vocabulary, tokenizer_of
from clearhead.tokenizers.base import TextTokenizer, check_texts

_PADDING = ("[PAD]", "<pad>")
"""How families spell it, for tokenizers that do not say."""

_SHORT = "Hello!"
_LONG = "The old bridge over the river was closed after the storm, and nobody can say when it will be opened again."


@dataclass
class Linted:
    """What was checked of a checkpoint, and what was found.

    Args:
        checked: what was looked at, for people.
        findings: the mistakes.
    """

    checked: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def lint_checkpoint(model: str | Path, texts: Sequence[str] = ()) -> Linted:
    """Looks for mistakes in a checkpoint: how its files say padding, and what its model and its pooling make of it.

    Args:
        model: a folder, or a Hub id.
        texts: what to run it with; a short and a long one always stand beside them, so that there is padding. Of an
            encoder–decoder they are the targets too.

    Raises:
        ValueError: no such model, or one that is not understood.

    >>> from clearhead.inspection.lint.checkpoint import lint_checkpoint
    >>> lint_checkpoint("all-MiniLM-L6-v2").findings
    []
    """
    folder = hub.resolve_model(model)
    tokenizer = tokenizer_of(folder, str(read_json(folder / "config.json").get("model_type")))
    texts = [*check_texts(texts), _SHORT, _LONG]
    check = _seq2seq if checkpoints.checkpoint_type(folder) == "seq2seq" else _encoder
    return check(folder, tokenizer, texts)


def _encoder(folder: Path, tokenizer: TextTokenizer, texts: Sequence[str]) -> Linted:
    encoder, _ = checkpoints.load_encoder(folder)
    checked_vocabulary(tokenizer, folder, encoder.config.vocab_size)
    settings = sentence_transformers.read(folder)
    config = encoder.config
    rows = _rows(tokenizer, texts, min(settings.max_length or config.max_len, config.max_len))
    ids, keep = _padded(rows, config.pad_id)
    found = Linted()
    _check_padding_id(found, folder, tokenizer, config.pad_id)
    batch = {"ids": ids, "mask": masks.padding(keep)}
    found.checked.append(f"who attends to whom in the encoder, {_told(rows)}")
    found.findings += lint(encoder, batch, keep=keep)
    found.checked.append(f"the pooled vector ({settings.pooling})")
    if not found.findings:
        found.findings += lint(_Pooled(encoder, settings.pooling), batch, keep=keep)
    return found


def _seq2seq(folder: Path, tokenizer: TextTokenizer, texts: Sequence[str]) -> Linted:
    model, _ = checkpoints.load_seq2seq(folder)
    config = model.config
    checked_vocabulary(tokenizer, folder, config.vocab_size, config.target_vocab_size)
    rows = _rows(tokenizer, texts, config.max_len)
    ids, keep = _padded(rows, config.pad_id)
    # in the other order: where source and target have the same lengths, masks that are swapped do not show
    targets, target_keep = _padded([[config.start_id, *row[:-1]] for row in reversed(rows)], config.pad_id)
    found = Linted()
    _check_padding_id(found, folder, tokenizer, config.pad_id)
    batch = {"ids": ids, "target_ids": targets, "mask": masks.padding(keep), "target_mask": masks.padding(target_keep)}
    found.checked.append(f"who attends to whom in the encoder, the decoder and between them, {_told(rows)}")
    found.findings += lint(model, batch, keep=keep, target_keep=target_keep)
    return found


class _Pooled(nn.Module):
    """The encoder with the pooling that its folder asks for, as `TextEncoder` has it."""

    def __init__(self, body: EncoderModel, pooling: Pooling) -> None:
        super().__init__()
        self.body, self.pooling = body, pooling

    def forward(self, ids: Tensor, mask: masks.Mask) -> Tensor:
        assert mask.keep_BM is not None
        return heads.pool(self.body(ids, mask), mask.keep_BM, self.pooling)


def _check_padding_id(found: Linted, folder: Path, tokenizer: TextTokenizer, pad_id: int) -> None:
    """Compares the model's padding id with the tokenizer's, where the tokenizer has one."""
    named = special_tokens.content(special_tokens.read_config(folder).get("pad_token"))
    tokens = [token for token in ([named] if named else _PADDING) if tokenizer.token_id(token) is not None]
    if not tokens:
        return
    token, own = tokens[0], tokenizer.token_id(tokens[0])
    found.checked.append(f"the padding id of config.json, {pad_id}, against the tokenizer's, {own} ({token})")
    if own != pad_id:
        found.findings.append(
            Finding(
                "the padding id is another token's",
                "config.json, pad_token_id",
                f"It is {pad_id}, which is {tokenizer.words([pad_id])[0]!r}; the tokenizer pads with {own} ({token}). "
                "Masks made as ids != pad_token_id take that token for padding, and padding for text.",
                f'Say "pad_token_id": {own} in config.json, unless the model was trained with the other.',
            )
        )


def _rows(tokenizer: TextTokenizer, texts: Sequence[str], max_length: int | None) -> list[list[int]]:
    """The texts as ids; without those that have no token at all, which no model is given."""
    return [tokens.ids for tokens in tokenizer.encode(texts, max_length) if tokens.ids]


def _told(rows: Sequence[Sequence[int]]) -> str:
    lengths = [len(row) for row in rows]
    return f"in {len(rows)} texts of {min(lengths)} to {max(lengths)} tokens"


def _padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
