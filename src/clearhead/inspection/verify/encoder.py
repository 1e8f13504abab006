"""Checks of encoders, which compare the hidden states of the tokens."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import checkpoints
from clearhead.checkpoints.encoder_family import EncoderFamily
from clearhead.equations import masks
from clearhead.inspection.verify.certificate import HEAD, Check
from clearhead.inspection.verify.checks import CPU, Checks, padded, random_ids, run_check, skip_check
from clearhead.inspection.verify.measures import (
    LEAST_COSINE,
    LOGITS,
    MEANS,
    TOKENS,
    Measure,
    Rows,
    cosine_error,
    means,
)
from clearhead.io.json import read_json
from clearhead.models.encoder import EncoderModel
from clearhead.runtime.packed_batch import packed_batches
from clearhead.tokenizers.base import Tokens


class EncoderChecks(Checks):
    """Checks of an encoder.

    Args:
        folder, model: as in `Checks`.
        family: architecture of the checkpoint.
    """

    model: EncoderModel
    # users get one vector for each text
    bfloat16_measure = Measure(
        "1 − smallest cosine of a mean vector",
        1 - LEAST_COSINE,
        lambda result, expected: cosine_error(means(result), means(expected)),
    )

    def __init__(self, folder: Path, model: EncoderModel, family: EncoderFamily) -> None:
        super().__init__(folder, model)
        self.family = family
        if not family.in_transformers:
            self.no_reference = f"transformers has no {family.model_type} model"
        self.rows = random_ids(model.config.vocab_size, {model.config.pad_id}, model.config.max_len)

    def states(
        self, model: Any, rows: Sequence[Tensor], left: int = 0, right: int = 0, *, packed: bool = False
    ) -> Rows:
        if packed:
            return self._packed_states(model, rows)
        ids, keep = padded(rows, self.model.config.pad_id, left, right)
        return _real_states(model(ids, masks.padding(keep)), keep)

    def _packed_states(self, model: Any, rows: Sequence[Tensor]) -> Rows:
        """Return the states as `encode` computes them."""
        tokens = [Tokens(row.tolist(), False) for row in rows]
        states: dict[int, Tensor] = {}
        for batch in packed_batches(tokens, 10**6, self.model.config, CPU):
            unpacked = batch.unpack(model(batch.ids, batch.mask))
            states.update(zip(batch.indices, _real_states(*unpacked), strict=True))
        return [states[index] for index in range(len(rows))]

    def unbatched(self) -> list[Check]:
        """Check that the vector of a text does not depend on its batch, as `encode` computes it."""

        def alone_and_together() -> tuple[Rows, Rows]:
            alone = [self._packed_states(self.model, [row])[0] for row in self.rows]
            return alone, self._packed_states(self.model, self.rows)

        return run_check("unbatched", alone_and_together, TOKENS, MEANS)

    def extra(self) -> list[Check]:
        architecture = checkpoints.architecture(self.folder)
        if (
            checkpoints.checkpoint_type(self.folder) in ("classification", "reranking", "span")
            or "For" not in architecture
        ):
            return []
        return skip_check(HEAD, LOGITS, f"the head of {architecture} is not supported")

    def reference_states(self) -> Rows:
        from transformers import AutoModel

        reference = self.reference(AutoModel)
        ids, keep = padded(self.rows, self.model.config.pad_id)
        return _real_states(reference(input_ids=ids, attention_mask=keep.long()).last_hidden_state, keep)

    def reference(self, auto: Any) -> Any:
        """Return the model of transformers, opened with one of its Auto classes.

        A folder of a publisher's first code is saved with the keys of transformers first: transformers would run the
        code, or open it as another architecture.
        """
        data = read_json(self.folder / "config.json")
        if self.family.translate(data) is data:
            return auto.from_pretrained(self.folder, dtype=torch.float32).eval()
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            return auto.from_pretrained(folder, dtype=torch.float32).eval()

    def save(self, folder: Path) -> None:
        """Save the model to a folder."""
        self.family.save(self.model, folder)

    def save_and_load(self, folder: Path) -> nn.Module:
        self.save(folder)
        return checkpoints.load_encoder(folder)[0]


def _real_states(states: Tensor, keep: Tensor) -> Rows:
    return [row[real] for row, real in zip(states, keep, strict=True)]
