"""Run an exported encoder–decoder with ONNX Runtime; `generation` searches with it as with any other model."""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.equations.masks import Mask
from clearhead.io.folders import check_utf8
from clearhead.io.json import dataclass_from_json, read_json
from clearhead.models.config import Seq2SeqConfig
from clearhead.models.seq2seq import Seq2Seq

_NOTHING = 4
"""Level at which ONNX Runtime logs no error of a graph: it raises the error, too."""
_LAYER_BYTES = 1000
"""Size that each layer of an encoder exceeds in a graph: it has dozens of named operations."""
MANIFEST = "export.json"
"""File name of an export's manifest: measured errors, list of files and, for ONNX graphs, the model's config."""


class OnnxGraph:
    """An ONNX graph in ONNX Runtime, with as many threads as torch uses.

    Args:
        path: the file.

    Raises:
        ValueError: ONNX Runtime is not installed, or the file is missing or broken.
    """

    def __init__(self, path: Path) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise ValueError('ONNX graphs need onnxruntime: pip install "clearhead[export]"')
        if not path.is_file():
            raise ValueError(f"{path} is missing; `clearhead export MODEL {path.parent} --to onnx` writes it")
        import onnxruntime

        check_utf8(path, "ONNX Runtime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = _NOTHING
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = _NOTHING
        self.path = path
        with self._errors("opened"):
            # with the fallback, ONNX Runtime prints the error and tries the same again
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            self.inputs = [one.name for one in self._session.get_inputs()]
            self.outputs = [one.name for one in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name.

        Raises:
            ValueError: inputs that the graph does not have or cannot compute with.
        """
        with self._errors("computed"):
            arguments = {name: tensor.numpy() for name, tensor in inputs.items()}
            outputs = self._session.run(self.outputs, arguments, self._options)
            arrays = [torch.from_numpy(np.asarray(output)) for output in outputs]
        return dict(zip(self.outputs, arrays, strict=True))

    def check(self, name: str, output: Tensor, *shape: int | None) -> Tensor:
        """Return an output that has float32 values and the given shape. None allows any size.

        Raises:
            ValueError: another type or shape.
        """
        sizes = tuple(output.shape)
        if len(sizes) != len(shape) or any(size not in (own, None) for own, size in zip(sizes, shape, strict=True)):
            expected = ", ".join("any size" if size is None else str(size) for size in shape)
            raise ValueError(f"{self.path}: the output {name} has the shape {sizes}; expected ({expected})")
        if output.dtype != torch.float32:
            raise ValueError(f"{self.path}: the output {name} has the type {output.dtype}; expected torch.float32")
        return output

    @contextlib.contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # ONNX Runtime's errors have no common base class
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{self.path} cannot be {done}: {reason}") from None


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
        with _named(folder / MANIFEST):
            self.config = dataclass_from_json(Seq2SeqConfig, config)
        self._encoder = _graph_with(folder / "encoder_model.onnx", "last_hidden_state")
        self._first, self._next = (
            _graph_with(folder / f"{name}.onnx", "logits") for name in ("decoder_model", "decoder_with_past_model")
        )
        with _named(folder / MANIFEST):
            self._check_layers()
            with torch.device("meta"):
                self.model = Seq2Seq(self.config)

    def _check_layers(self) -> None:
        """Raise a ValueError if the graphs have other numbers of layers."""
        layers = self.config.decoder_num_layers or self.config.num_layers
        cached = sum(".decoder.key" in name for name in self._next.inputs)
        if layers != cached:
            raise ValueError(f"decoder_num_layers is {layers}, and the graph has {cached}")
        most = self._encoder.path.stat().st_size // _LAYER_BYTES
        if self.config.num_layers > most:
            raise ValueError(f"num_layers is {self.config.num_layers}; the encoder's graph has at most {most}")

    def encode(self, ids: Int[Tensor, "B M"], mask: Mask) -> Float[Tensor, "B M D"]:
        """Return the memory."""
        outputs = self._encoder.run({"input_ids": ids, "attention_mask": _keep(mask)})
        return self._encoder.check("last_hidden_state", outputs["last_hidden_state"], *ids.shape, self.config.d_model)

    def decode(
        self,
        target_ids: Int[Tensor, "N L"],
        memory: Float[Tensor, "B M D"],
        mask: None,
        memory_mask: Mask,
        cache: OnnxCache,
    ) -> Float[Tensor, "N L V"]:
        """Return the logits after each of the newest target tokens."""
        keep_NM = _keep(memory_mask).repeat_interleave(cache.num_beams, dim=0)
        inputs = {"input_ids": target_ids, "encoder_attention_mask": keep_NM}
        graph, others = (
            (self._next, cache.tensors) if cache.length else (self._first, {"encoder_hidden_states": memory})
        )
        outputs = graph.run(inputs | others)
        vocab_size = self.config.target_vocab_size or self.config.vocab_size
        logits_NLV = graph.check("logits", outputs.pop("logits"), *target_ids.shape, vocab_size)
        lengths = {"decoder": cache.length + target_ids.shape[1], "encoder": keep_NM.shape[1]}
        for name, tensor in outputs.items():
            length = lengths["encoder" if ".encoder." in name else "decoder"]
            graph.check(name, tensor, len(target_ids), None, length, None)
        cache.tensors |= {name.replace("present", "past_key_values"): tensor for name, tensor in outputs.items()}
        return logits_NLV

    def cache(self) -> OnnxCache:
        """Return an empty cache for `decode`."""
        return OnnxCache()


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add a file and the way out to errors about its contents."""
    try:
        yield
    except (ValueError, RuntimeError) as error:  # torch's, for sizes that overflow
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path}: {reason}; export the model again") from None


def _graph_with(path: Path, output: str) -> OnnxGraph:
    """Open a graph that has an output of this name."""
    graph = OnnxGraph(path)
    if output not in graph.outputs:
        raise ValueError(f"{path} is another graph: it has no output {output}; export the model again")
    return graph


def _keep(mask: Mask) -> Int[Tensor, "B M"]:
    assert mask.keep_BM is not None
    return mask.keep_BM.long()
