"""Run a model on typical texts and record the inputs of its linear layers, to quantize their weights."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from clearhead.finite import check_finite, error_context
from clearhead.generation.config import GenerationConfig
from clearhead.generation.generate import generate
from clearhead.generation.strategy import EncodedSource
from clearhead.models.encoder import EncoderModel
from clearhead.models.seq2seq import Seq2Seq
from clearhead.runtime.packed_batch import hidden_states
from clearhead.tokenizers.base import TextTokenizer
from clearhead.tokenizers.tokenizer import Tokenizer

NUM_OUTLIERS = 8
"""Number of columns of each layer that stay in float32."""

MAX_ROWS = 4096
"""Rows of input of each layer that are used."""

MAX_NEW_TOKENS = 60
"""Maximum number of tokens of the output for a calibration text."""


def calibration_texts() -> list[str]:
    """Return short sentences and paragraphs in everyday English, written for this package."""
    return Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8").splitlines()


def calibrate_encoder(encoder: EncoderModel, tokenizer: Tokenizer, max_length: int | None) -> None:
    """Run an encoder on the calibration texts.

    Args:
        encoder: the encoder, in float32.
        tokenizer: its tokenizer.
        max_length: longer texts are truncated to this number of tokens.

    Raises:
        NonFiniteError: the model's hidden states hold NaN or infinity.
    """
    texts, device = calibration_texts(), encoder.embedding.tokens.weight.device
    with _name_text(texts):
        batches = hidden_states(encoder, tokenizer.encode(texts, max_length), None, encoder.config, device)
        for indices, hidden, keep in batches:
            check_finite((hidden * keep[:, :, None]).cpu().numpy(), "hidden states", indices)


def calibrate_seq2seq(model: Seq2Seq, tokenizer: TextTokenizer, max_length: int | None) -> None:
    """Generate the outputs of the calibration texts, greedily.

    Args:
        model: the encoder–decoder, in float32.
        tokenizer, max_length: as in `calibrate_encoder`.
    """
    texts = calibration_texts()
    sources = [EncodedSource(tokens.ids, (model.config.start_id,)) for tokens in tokenizer.encode(texts, max_length)]
    with _name_text(texts):
        generate(model.eval(), sources, GenerationConfig(beam_size=1, max_new_tokens=MAX_NEW_TOKENS))


def _name_text(texts: list[str]) -> AbstractContextManager[None]:
    """Name the calibration text in a `NonFiniteError`."""
    return error_context(
        text=texts.__getitem__, location=lambda index: f"calibration text {index + 1}", model="to quantize"
    )


@dataclass
class InputStatistics:
    """Statistics of the inputs X (n, K) of a linear layer.

    Args:
        hessian_KK: Xᵀ X.
        largest_K: largest absolute value of each column.
        rows: n.
    """

    hessian_KK: Tensor
    largest_K: Tensor
    rows: int = 0

    def update(self, x: Tensor) -> None:
        """Add inputs, up to `MAX_ROWS` in total."""
        x = x.detach().flatten(0, -2)[: MAX_ROWS - self.rows].float()
        if len(x):
            self.hessian_KK += x.T @ x
            self.largest_K = torch.maximum(self.largest_K, x.abs().amax(dim=0))
            self.rows += len(x)

    def outliers(self) -> Tensor:
        """Return the columns with the largest values, in order."""
        return self.largest_K.topk(min(NUM_OUTLIERS, len(self.largest_K))).indices.sort().values


def record_inputs(widths: Iterable[tuple[nn.Module, int]], run: Callable[[], object]) -> dict[int, InputStatistics]:
    """Run a model, and return the statistics of the inputs of some modules by their `id`.

    Args:
        widths: each module with the number of columns of its input.
        run: runs the model on typical inputs.
    """
    statistics: dict[int, InputStatistics] = {}
    handles = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        statistics[id(module)].update(inputs[0])

    for module, width in widths:
        statistics[id(module)] = InputStatistics(torch.zeros(width, width), torch.zeros(width))
        handles.append(module.register_forward_pre_hook(record))
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    return statistics
