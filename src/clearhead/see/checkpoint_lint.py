"""The linter on a checkpoint and some texts."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from clearhead import checkpoints
from clearhead.checkpoints import directory
from clearhead.equations import masks
from clearhead.see.lint import lint
from clearhead.see.lint_masks import Finding
from clearhead.text.folder import tokenizer_of


def lint_checkpoint(model: str | Path, texts: Sequence[str]) -> list[Finding]:
    """The linter's findings for a checkpoint that is given texts of several lengths, padded.

    Args:
        model: a folder, or a Hub id.
        texts: the texts; of an encoder–decoder, the targets too.

    Raises:
        ValueError: no such model, or one that is not understood.
    """
    folder = directory.find(model)
    kind = str(directory.read_json(folder / "config.json").get("model_type"))
    if not checkpoints.is_seq2seq(folder):
        encoder, _ = checkpoints.load_encoder(folder)
        rows = [tokens.ids for tokens in tokenizer_of(folder, kind).encode(list(texts), encoder.config.max_len)]
        ids, keep = _padded(rows, encoder.config.pad_id)
        return lint(encoder, {"ids": ids, "mask": masks.padding(keep)}, keep=keep)
    seq2seq, _ = checkpoints.load_seq2seq(folder)
    config = seq2seq.config
    rows = [tokens.ids for tokens in tokenizer_of(folder, kind).encode(list(texts), config.max_len)]
    ids, keep = _padded(rows, config.pad_id)
    targets, target_keep = _padded([[config.start_id, *row[:-1]] for row in rows], config.pad_id)
    batch = {"ids": ids, "target_ids": targets, "mask": masks.padding(keep), "target_mask": masks.padding(target_keep)}
    return lint(seq2seq, batch, keep=keep, target_keep=target_keep)


def _padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
