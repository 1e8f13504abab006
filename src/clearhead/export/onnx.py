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
from clearhead.export.against import check, greedy, quiet
from clearhead.export.folders import Model, loaded
from clearhead.export.graphs import Graph
from clearhead.export.texts import TEXTS
from clearhead.files import whole_folder
from clearhead.run.answers import QuestionAnswerer
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.run.onnx import NOTE, compute, session
from clearhead.run.tasks import TextClassifier

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
        if isinstance(made, TextToText):
            drawn, batches = _of_seq2seq(made, texts)
        elif isinstance(made, TextEncoder):
            drawn, batches = _of_encoder(made, texts)
        else:
            drawn, batches = _of_head(made, texts)
        made.save_pretrained(part)
        for weights in part.glob("*.safetensors*"):
            weights.unlink()  # they are in the graphs
        error = {graph.name: _written(graph, part, batches[graph.name]) for graph in drawn}
        body = made.model if isinstance(made, TextEncoder | TextToText) else made.model.body
        note = {"plan": asdict(body.config), "error": error}
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
    error = 0.0
    for found, wanted in zip(*_both(graph, part, batch), strict=True):
        away = (found - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)
        error = max(error, float(away.nan_to_num(nan=float("inf"))))
    return check(error, f"{path.name}: its outputs are")


def _both(graph: Graph, part: Path, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """What the written graph computes, and what the model does."""
    with torch.inference_mode():
        wanted = graph.module(*batch.values())
    found = compute(session(part / f"{graph.name}.onnx"), dict(batch))
    return [found[name] for name in graph.outputs], list(wanted) if isinstance(wanted, tuple) else [wanted]


def _of_encoder(made: TextEncoder, texts: Sequence[str]) -> tuple[list[Graph], dict[str, Batch]]:
    """The graph of an encoder, and what it is tried with: the texts."""
    settings = made.settings
    if settings.prompts and not settings.pool_prompt:
        raise ValueError("this model leaves its prompts out of the pooling (include_prompt=false): no graph holds that")
    ids, mask = _padded([tokens.ids for tokens in made.tokenize(texts)], made.model.config.pad_id)
    drawn = graphs.of_encoder(made.model, settings.pooling, settings.normalize)
    return drawn, {"model": {"input_ids": ids, "attention_mask": mask}}


def _of_head(made: TextClassifier | QuestionAnswerer, texts: Sequence[str]) -> tuple[list[Graph], dict[str, Batch]]:
    """The graph of an encoder with a head, and what it is tried with: the texts, as a first one and a second."""
    rows = [tokens.ids for tokens in made.tokenizer.encode(texts, made.max_length)]
    ids, mask = _padded(rows, made.model.body.config.pad_id)
    drawn = graphs.of_head(made.model)
    batch = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in drawn[0].inputs:
        batch["token_type_ids"] = (torch.arange(ids.shape[1]) > ids.shape[1] // 2) * mask
    return drawn, {"model": batch}


def _of_seq2seq(made: TextToText, texts: Sequence[str]) -> tuple[list[Graph], dict[str, Batch]]:
    """The graphs of an encoder–decoder, and what they are tried with: the texts, and what it makes of them greedily, of
    which the cached step has the last token."""
    config, before = made.model.config, made.prompts.before
    sources = made.tokenizer.encode([before + text for text in texts], made.max_length)
    ids, mask = _padded([tokens.ids for tokens in sources], config.pad_id)
    outputs = greedy(made, texts)
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
    """Puts a graph's products in 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    drawn = onnx.load(path)
    del drawn.graph.value_info[:]  # shapes that the quantizer, which turns matrices about, would find to be others
    apart = path.with_name(f"{path.name}.data").exists()
    quantize_dynamic(drawn, path, weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=apart)


def _loss(made: Model, part: Path, texts: Sequence[str]) -> dict[str, float]:
    """Of an encoder the cosine of each text's vector with that of float32; of one with a head the largest difference of
    a logit; of an encoder–decoder how many texts it still turns greedily into the same tokens."""
    if isinstance(made, TextClassifier | QuestionAnswerer):
        (graph,), batches = _of_head(made, texts)
        found, wanted = _both(graph, part, batches["model"])
        return {
            "largest difference of a logit": max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))
        }
    if isinstance(made, TextEncoder):
        (graph,), batches = _of_encoder(made, texts)
        one, other = (outputs[0].numpy() for outputs in _both(graph, part, batches["model"]))
        cosines = (one * other).sum(1) / (np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1))
        return {"smallest cosine": float(cosines.min()), "mean cosine": float(cosines.mean())}
    small = TextToText.from_pretrained(part, runtime="onnx")
    after, before = greedy(small, texts), greedy(made, texts)
    same = [one.token_ids == other.token_ids for one, other in zip(after, before, strict=True)]
    return {f"share of {len(same)} texts with the same greedy output": sum(same) / len(same)}
