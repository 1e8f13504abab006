"""ONNX files: written, opened by ONNX Runtime, compared with the model on real texts, and only then there."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clearhead.checkpoints import directory
from clearhead.export import graphs
from clearhead.export.against import check, quiet
from clearhead.export.folders import loaded
from clearhead.export.graphs import Graph
from clearhead.export.texts import TEXTS
from clearhead.files import whole_folder
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.run.onnx import NOTE, compute, session

_OPSET = 18
_LARGEST = 1_800_000_000
"""Bytes of weights that go into a graph's own file: a protocol buffer holds at most 2 GiB."""

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        folder: where.
        error: for each graph the largest difference to the model's outputs, of the largest number there.
        loss: what 8 bits cost, by name; {} for float32.
    """

    folder: Path
    error: dict[str, float]
    loss: dict[str, float]


def export(model: str | Path, folder: str | Path, *, int8: bool = False, texts: Sequence[str] = TEXTS) -> Exported:
    """Writes a model as ONNX: an encoder from ids to one vector, an encoder–decoder as three graphs.

    Args:
        model: a folder, or a Hub id.
        folder: where to; tokenizer, config.json and generation_config.json go there too.
        int8: all products in 8 bits, the weights' scales fixed and the activations' found while running; what that
            costs is measured on the texts.
        texts: what the graphs are compared on with the model, in float32.

    Raises:
        ValueError: no such model, one that a graph cannot hold, or a graph whose outputs are not the model's: then
            nothing is written.

    Batch and lengths are free. Files, inputs and outputs are named as Optimum names them.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f'exporting to ONNX needs {name}: pip install "clearhead[export]"')
    made = loaded(model)
    with whole_folder(Path(folder)) as part, quiet():
        drawn, batches = _of_encoder(made, texts) if isinstance(made, TextEncoder) else _of_seq2seq(made, texts)
        made.save_pretrained(part)
        for weights in part.glob("*.safetensors*"):
            weights.unlink()  # they are in the graphs
        error = {graph.name: _written(graph, part, batches[graph.name]) for graph in drawn}
        note = {"plan": asdict(made.model.config), "error": error}
        directory.write_json(part / NOTE, note)
        loss: dict[str, float] = {}
        if int8:
            for graph in drawn:
                _quantize(part / f"{graph.name}.onnx")
            loss = _loss(made, part, texts)
            directory.write_json(part / NOTE, note | {"int8": loss})
    return Exported(Path(folder), error, loss)


def _written(graph: Graph, part: Path, batch: Batch) -> float:
    """Writes a graph and compares it; gives the largest difference.

    Raises:
        ValueError: it is above the bound.
    """
    path = part / f"{graph.name}.onnx"
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.module.state_dict().values())
    try:
        program = torch.onnx.export(
            graph.module,
            tuple(graph.inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=_OPSET,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=graph.shapes(),
        )
    except torch.onnx.OnnxExporterError as problem:
        told = str(problem.__cause__ or problem).strip().splitlines()[0]
        raise ValueError(f"{path.name}: this model cannot be drawn as a graph: {told}") from None
    assert program is not None
    program.save(str(path), external_data=size > _LARGEST)
    with torch.inference_mode():
        wanted = graph.module(*batch.values())
    found = compute(session(path), dict(batch))
    error = 0.0
    for name, tensor in zip(graph.outputs, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        away = (found[name] - tensor).abs().max() / tensor.abs().max().clamp(min=1.0)
        error = max(error, float(away.nan_to_num(nan=float("inf"))))
    return check(error, f"{path.name}: its outputs are")


def _of_encoder(made: TextEncoder, texts: Sequence[str]) -> tuple[list[Graph], dict[str, Batch]]:
    """The graph of an encoder, and what it is tried with: the texts."""
    settings = made.settings
    if settings.prompts and not settings.pool_prompt:
        raise ValueError("this model leaves its prompts out of the pooling (include_prompt=false): no graph holds that")
    ids, mask = _padded([tokens.ids for tokens in made.tokenize(texts)], made.model.config.pad_id)
    drawn = graphs.of_encoder(made.model, settings.pooling, settings.normalize)
    return drawn, {"model": {"input_ids": ids, "attention_mask": mask}}


def _of_seq2seq(made: TextToText, texts: Sequence[str]) -> tuple[list[Graph], dict[str, Batch]]:
    """The graphs of an encoder–decoder, and what they are tried with: the texts, and what it makes of them greedily, of
    which the cached step has the last token."""
    config, before = made.model.config, made.prompts.before
    sources = made.tokenizer.encode([before + text for text in texts], made.max_length)
    ids, mask = _padded([tokens.ids for tokens in sources], config.pad_id)
    outputs = made.generate(texts, beam_size=1, max_new_tokens=16, return_details=True)
    targets, _ = _padded([(config.start_id, *output.token_ids) for output in outputs], config.pad_id)
    with torch.inference_mode():
        memory = made.model.encode(ids, graphs.padding(mask))
        first = {"input_ids": targets[:, :-1], "encoder_hidden_states": memory, "encoder_attention_mask": mask}
        _, *held = graphs.FirstStep(made.model)(*first.values())
    past = dict(zip(graphs.past_names(made.model), held, strict=True))
    return graphs.of_seq2seq(made.model), {
        "encoder_model": {"input_ids": ids, "attention_mask": mask},
        "decoder_model": first,
        "decoder_with_past_model": {"input_ids": targets[:, -1:], "encoder_attention_mask": mask, **past},
    }


def _padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(row) for row in rows]
    masks = [torch.ones_like(row) for row in tensors]
    return pad_sequence(tensors, batch_first=True, padding_value=pad), pad_sequence(masks, batch_first=True)


def _quantize(path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_suffix(".float32.onnx")
    path.rename(whole)
    quantize_dynamic(whole, path, weight_type=QuantType.QInt8, per_channel=True)
    whole.unlink()


def _loss(made: TextEncoder | TextToText, part: Path, texts: Sequence[str]) -> dict[str, float]:
    """Of an encoder the cosine of each text's vector with that of float32; of an encoder–decoder how many texts it
    still turns greedily into the same tokens."""
    if isinstance(made, TextEncoder):
        ids, mask = _padded([tokens.ids for tokens in made.tokenize(texts)], made.model.config.pad_id)
        inputs = {"input_ids": ids, "attention_mask": mask}
        found = compute(session(part / "model.onnx"), inputs)["sentence_embedding"].numpy()
        wanted = made.encode(texts)
        cosines = (found * wanted).sum(1) / (np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1))
        return {"smallest cosine": float(cosines.min()), "mean cosine": float(cosines.mean())}
    small = TextToText.from_pretrained(part, runtime="onnx")
    after, before = (one.generate(texts, beam_size=1, return_details=True) for one in (small, made))
    same = [one.token_ids == other.token_ids for one, other in zip(after, before, strict=True)]
    return {f"share of {len(same)} texts with the same greedy output": sum(same) / len(same)}
