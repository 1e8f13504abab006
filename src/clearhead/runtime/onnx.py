"""Exported encoder–decoders, computed by ONNX Runtime; the searches are those of every other model."""

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations.masks import Mask
from clearhead.io.json import read_json
from clearhead.models.config import Seq2SeqConfig

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

MANIFEST = "export.json"
"""The file that an export leaves: what was measured when it was written, its files, and beside graphs the plan."""


def session(path: Path) -> "InferenceSession":
    """A graph, ready to run on as many threads as torch uses.

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
    except Exception as error:  # ONNX Runtime's errors have no class of their own in common
        raise ValueError(f"{path} cannot be opened: {str(error).splitlines()[0]}") from None


def compute(graph: "InferenceSession", inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """A graph's outputs, by name."""
    names = [output.name for output in graph.get_outputs()]
    outputs = graph.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
    return {name: torch.from_numpy(np.asarray(found)) for name, found in zip(names, outputs, strict=True)}


@dataclass
class OnnxCache:
    """The keys and values that the graphs hand on.

    Args:
        held: by the names of the inputs that take them.
        num_beams: rows of the target for each row of the memory.
    """

    held: dict[str, Tensor] = field(default_factory=dict)
    num_beams: int = 1

    @property
    def length(self) -> int:
        """Number of target tokens held."""
        return next((tensor.shape[2] for name, tensor in self.held.items() if ".decoder." in name), 0)

    def expand_beams(self, num_beams: int) -> None:
        """From now on each row of the target is so many, which are alike so far."""
        self.held = {name: tensor.repeat_interleave(num_beams, dim=0) for name, tensor in self.held.items()}
        self.num_beams = num_beams

    def reorder(self, rows: Int[Tensor, "N"], sentences: Int[Tensor, "S"] | None = None) -> None:
        """Keeps these rows of the target; those of the memory stand beside each of them."""
        whose = {".decoder.": rows}
        if sentences is not None:
            whose[".encoder."] = rows
        for part, kept in whose.items():
            self.held |= {name: tensor[kept] for name, tensor in self.held.items() if part in name}


class OnnxSeq2Seq:
    """The three graphs of an encoder–decoder in place of a `Seq2Seq`: `encode`, `decode` and `cache` as there.

    Args:
        folder: what `clearhead export --to onnx` wrote.

    Raises:
        ValueError: files that are missing or broken.
    """

    device = torch.device("cpu")

    def __init__(self, folder: Path) -> None:
        plan = read_json(folder / MANIFEST).get("plan")
        if not isinstance(plan, dict) or "eos_ids" not in plan:
            raise ValueError(f"{folder / MANIFEST} holds no plan of an encoder–decoder; export the model again")
        self.config = Seq2SeqConfig(**{**plan, "eos_ids": tuple(plan["eos_ids"])})
        self._encoder, self._first, self._next = (
            session(folder / f"{name}.onnx") for name in ("encoder_model", "decoder_model", "decoder_with_past_model")
        )

    def encode(self, ids: Int[Tensor, "B M"], mask: Mask) -> Float[Tensor, "B M D"]:
        """The memory."""
        inputs = {"input_ids": ids, "attention_mask": _kept(mask)}
        return compute(self._encoder, inputs)["last_hidden_state"]

    def decode(
        self,
        target_ids: Int[Tensor, "N L"],
        memory: Float[Tensor, "B M D"],
        mask: None,
        memory_mask: Mask,
        cache: OnnxCache,
    ) -> Float[Tensor, "N L V"]:
        """The scores of the token after each of the newest target tokens."""
        kept = _kept(memory_mask).repeat_interleave(cache.num_beams, dim=0)
        inputs = {"input_ids": target_ids, "encoder_attention_mask": kept}
        if cache.length:
            outputs = compute(self._next, inputs | cache.held)
        else:
            outputs = compute(self._first, inputs | {"encoder_hidden_states": memory})
        logits = outputs.pop("logits")
        cache.held |= {name.replace("present", "past_key_values"): tensor for name, tensor in outputs.items()}
        return logits

    def cache(self) -> OnnxCache:
        """An empty cache for `decode`."""
        return OnnxCache()


def _kept(mask: Mask) -> Int[Tensor, "B M"]:
    assert mask.keep_BM is not None
    return mask.keep_BM.long()
