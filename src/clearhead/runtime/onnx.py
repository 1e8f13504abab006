"""Run an exported encoder–decoder with ONNX Runtime; `generation` searches with it as with any other model."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations.masks import Mask
from clearhead.io.json import dataclass_from_json, read_json
from clearhead.models.config import Seq2SeqConfig

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

MANIFEST = "export.json"
"""File name of an export's manifest: measured errors, list of files and, for ONNX graphs, the model's config."""


def open_session(path: Path) -> "InferenceSession":
    """Open an ONNX graph, with as many threads as torch uses.

    Raises:
        ValueError: ONNX Runtime is not installed, or the file is missing or broken.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise ValueError('ONNX graphs need onnxruntime: pip install "clearhead[export]"')
    if not path.is_file():
        raise ValueError(f"{path} is missing; `clearhead export MODEL {path.parent} --to onnx` writes it")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors have no common base class
        raise ValueError(f"{path} cannot be opened: {str(error).splitlines()[0]}") from None


def run_session(graph: "InferenceSession", inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run a graph and return its outputs by name."""
    names = [output.name for output in graph.get_outputs()]
    outputs = graph.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {name: torch.from_numpy(np.asarray(output)) for name, output in zip(names, outputs, strict=True)}


@dataclass
class OnnxCache:
    """Keys and values that one graph returns and the next one takes.

    Args:
        tensors: keys and values, by the input name of the graph that takes them.
        num_beams: number of target rows for each row of the memory.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    num_beams: int = 1

    @property
    def length(self) -> int:
        """Number of target tokens in the cache."""
        return next((tensor.shape[2] for name, tensor in self.tensors.items() if ".decoder." in name), 0)

    def expand_beams(self, num_beams: int) -> None:
        """Repeat each target row as the beams of its sentence."""
        self.tensors = {name: tensor.repeat_interleave(num_beams, dim=0) for name, tensor in self.tensors.items()}
        self.num_beams = num_beams

    def reorder(self, rows: Int[Tensor, "N"], sentences: Int[Tensor, "S"] | None = None) -> None:
        """Keep these target rows, and their copies of the memory if sentences are dropped."""
        rows_of = {".decoder.": rows}
        if sentences is not None:
            rows_of[".encoder."] = rows
        for part, kept in rows_of.items():
            self.tensors |= {name: tensor[kept] for name, tensor in self.tensors.items() if part in name}


class OnnxSeq2Seq:
    """An encoder–decoder in three ONNX graphs, with `encode`, `decode` and `cache` as in `Seq2Seq`.

    Args:
        folder: a folder that `clearhead export --to onnx` wrote.

    Raises:
        ValueError: files that are missing or broken.
    """

    device = torch.device("cpu")

    def __init__(self, folder: Path) -> None:
        if not (folder / MANIFEST).is_file():
            raise ValueError(
                f"{folder} is not an export for ONNX Runtime: it has no {MANIFEST}. "
                "Run `clearhead export MODEL OUT --to onnx`, and use OUT as the model"
            )
        config = read_json(folder / MANIFEST).get("plan")
        if not isinstance(config, dict) or "eos_ids" not in config:
            raise ValueError(f"{folder / MANIFEST} has no config of an encoder–decoder; export the model again")
        try:
            self.config = dataclass_from_json(Seq2SeqConfig, config)
        except ValueError as error:
            raise ValueError(f"{folder / MANIFEST}: {error}; export the model again") from None
        self._encoder, self._first, self._next = (
            open_session(folder / f"{name}.onnx")
            for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
        )

    def encode(self, ids: Int[Tensor, "B M"], mask: Mask) -> Float[Tensor, "B M D"]:
        """Return the memory."""
        inputs = {"input_ids": ids, "attention_mask": _keep(mask)}
        return run_session(self._encoder, inputs)["last_hidden_state"]

    def decode(
        self,
        target_ids: Int[Tensor, "N L"],
        memory: Float[Tensor, "B M D"],
        mask: None,
        memory_mask: Mask,
        cache: OnnxCache,
    ) -> Float[Tensor, "N L V"]:
        """Return the logits after each of the newest target tokens."""
        keep = _keep(memory_mask).repeat_interleave(cache.num_beams, dim=0)
        inputs = {"input_ids": target_ids, "encoder_attention_mask": keep}
        if cache.length:
            outputs = run_session(self._next, inputs | cache.tensors)
        else:
            outputs = run_session(self._first, inputs | {"encoder_hidden_states": memory})
        logits = outputs.pop("logits")
        cache.tensors |= {name.replace("present", "past_key_values"): tensor for name, tensor in outputs.items()}
        return logits

    def cache(self) -> OnnxCache:
        """Return an empty cache for `decode`."""
        return OnnxCache()


def _keep(mask: Mask) -> Int[Tensor, "B M"]:
    assert mask.keep_BM is not None
    return mask.keep_BM.long()
