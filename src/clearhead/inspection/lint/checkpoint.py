"""Lint a checkpoint: its padding id, its attention masks and its pooled vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints import load_tokenizer, sentence_transformers
from clearhead.equations import masks
from clearhead.inspection.lint.lint import lint
from clearhead.inspection.lint.rule import Finding, Stage, first_finding
from clearhead.inspection.lint.rules.padding_id import PaddingIds
from clearhead.io import hub
from clearhead.io.json import read_json
from clearhead.models import heads
from clearhead.models.config import Pooling
from clearhead.models.encoder import EncoderModel
from clearhead.tokenizers import special_tokens
from clearhead.tokenizers.auto import check_vocabulary
from clearhead.tokenizers.base import TextTokenizer, check_texts

_PADDING_TOKENS = ("[PAD]", "<pad>")
"""Padding tokens of tokenizers whose config does not name one."""

_SHORT = "Hello!"
_LONG = "The old bridge over the river was closed after the storm, and nobody can say when it will be opened again."


@dataclass
class LintReport:
    """Result of linting a checkpoint.

    Args:
        checked: descriptions of the checks.
        findings: the mistakes.
    """

    checked: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def lint_checkpoint(model: str | Path, texts: Sequence[str] = ()) -> LintReport:
    """Find mistakes in the files of a checkpoint and in the attention and pooling of its model.

    Args:
        model: a folder, or a Hub id.
        texts: texts to run, in addition to a short and a long one that ensure padding. An encoder–decoder gets them as
            targets too.

    Raises:
        ValueError: the model does not exist or is not supported.

    >>> from clearhead.inspection.lint.checkpoint import lint_checkpoint
    >>> lint_checkpoint("all-MiniLM-L6-v2").findings
    []
    """
    folder = hub.resolve_model(model)
    tokenizer = load_tokenizer(folder, str(read_json(folder / "config.json").get("model_type")))
    texts = [*check_texts(texts), _SHORT, _LONG]
    lint_type = _lint_seq2seq if checkpoints.checkpoint_type(folder) == "seq2seq" else _lint_encoder
    return lint_type(folder, tokenizer, texts)


def _lint_encoder(folder: Path, tokenizer: TextTokenizer, texts: Sequence[str]) -> LintReport:
    encoder, _ = checkpoints.load_encoder(folder)
    check_vocabulary(tokenizer, folder, encoder.config.vocab_size)
    settings = sentence_transformers.read_settings(folder)
    config = encoder.config
    rows = _token_ids(tokenizer, texts, min(settings.max_length or config.max_len, config.max_len))
    ids, keep = _pad(rows, config.pad_id)
    report = LintReport()
    _lint_padding_id(report, folder, tokenizer, config.pad_id)
    batch = {"ids": ids, "mask": masks.padding(keep)}
    report.checked.append(f"attention of the encoder, {_sizes(rows)}")
    report.findings += lint(encoder, batch, keep=keep)
    report.checked.append(f"pooled vector ({settings.pooling})")
    if not report.findings:
        report.findings += lint(_PooledEncoder(encoder, settings.pooling), batch, keep=keep)
    return report


def _lint_seq2seq(folder: Path, tokenizer: TextTokenizer, texts: Sequence[str]) -> LintReport:
    model, _ = checkpoints.load_seq2seq(folder)
    config = model.config
    check_vocabulary(tokenizer, folder, config.vocab_size, config.target_vocab_size)
    rows = _token_ids(tokenizer, texts, config.max_len)
    ids, keep = _pad(rows, config.pad_id)
    # in reverse order: equal lengths of source and target would hide swapped masks
    targets, target_keep = _pad([[config.start_id, *row[:-1]] for row in reversed(rows)], config.pad_id)
    report = LintReport()
    _lint_padding_id(report, folder, tokenizer, config.pad_id)
    batch = {"ids": ids, "target_ids": targets, "mask": masks.padding(keep), "target_mask": masks.padding(target_keep)}
    report.checked.append(f"attention of the encoder, the decoder and between them, {_sizes(rows)}")
    report.findings += lint(model, batch, keep=keep, target_keep=target_keep)
    return report


class _PooledEncoder(nn.Module):
    """An encoder with the pooling of its folder, as in `TextEncoder`."""

    def __init__(self, body: EncoderModel, pooling: Pooling) -> None:
        super().__init__()
        self.body, self.pooling = body, pooling

    def forward(self, ids: Tensor, mask: masks.Mask) -> Tensor:
        assert mask.keep_BM is not None
        return heads.pool(self.body(ids, mask), mask.keep_BM, self.pooling)


def _lint_padding_id(report: LintReport, folder: Path, tokenizer: TextTokenizer, pad_id: int) -> None:
    """Compare the model's padding id with the tokenizer's, if the tokenizer has one."""
    configured = special_tokens.content(special_tokens.read_config(folder).get("pad_token"))
    for token in [configured] if configured else _PADDING_TOKENS:
        tokenizer_id = tokenizer.token_id(token)
        if tokenizer_id is not None:
            report.checked.append(
                f"padding id {pad_id} of config.json against the tokenizer's, {tokenizer_id} ({token})"
            )
            ids = PaddingIds(pad_id, tokenizer.ids_to_tokens([pad_id])[0], tokenizer_id, token)
            report.findings += first_finding(Stage.CHECKPOINT, ids)
            return


def _token_ids(tokenizer: TextTokenizer, texts: Sequence[str], max_length: int | None) -> list[list[int]]:
    """Return the ids of the texts that have at least one token."""
    return [tokens.ids for tokens in tokenizer.encode(texts, max_length) if tokens.ids]


def _sizes(rows: Sequence[Sequence[int]]) -> str:
    lengths = [len(row) for row in rows]
    return f"in {len(rows)} texts of {min(lengths)} to {max(lengths)} tokens"


def _pad(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
