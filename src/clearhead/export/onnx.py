"""ONNX files: written, opened by ONNX Runtime, compared with the model on real texts, and only then there."""

import importlib.util
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from clearhead.export import example_inputs
from clearhead.export.example_inputs import Batch, ExampleInputs
from clearhead.export.graphs import Graph
from clearhead.export.output import ExportReport, export_folder
from clearhead.export.parity import check, cosines, log_prob_error, relative_error, suppress_warnings
from clearhead.export.sample_texts import TEXTS, checked
from clearhead.kernels.attention import attention_backend
from clearhead.pipelines.auto import Pipeline, load_pipeline
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.onnx import open_session, run_session

_OPSET = 18
_LARGEST = 1_800_000_000
"""Bytes of weights that go into a graph's own file: a protocol buffer holds at most 2 GiB."""


def export(model: str | Path, folder: str | Path, *, int8: bool = False, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Writes a model as ONNX: an encoder from ids to one vector, an encoder–decoder as three graphs.

    Args:
        model: a folder, or a Hub id.
        folder: where to; tokenizer, config.json and generation_config.json go there too.
        int8: all products in 8 bits, the weights' scales fixed and the activations' found while running; what that
            costs is measured on the texts.
        texts: what the graphs are compared on with the model, in float32; a row as long as the model takes is added.

    Raises:
        ValueError: no such model, one that a graph cannot hold, or a graph whose outputs are not the model's: then
            nothing is written. As in `export_folder`, too.

    Batch and lengths are free. Files, inputs and outputs are named as Optimum names them.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f'exporting to ONNX needs {name}: pip install "clearhead[export]"')
    texts = checked(texts)
    with export_folder(model, folder, "onnx") as (part, told), suppress_warnings():
        made = load_pipeline(model)
        if isinstance(made, TextEncoder) and made.settings.prompts and not made.settings.pool_prompt:
            raise ValueError(
                "this model leaves its prompts out of the pooling (include_prompt=false): no graph holds that"
            )
        made.save_pretrained(part)
        for weights in part.glob("*.safetensors*"):
            weights.unlink()  # they are in the graphs
        tried = example_inputs.of(made, texts)
        told.error.update({f"{trial.graph.name}.onnx": _written(trial, part) for trial in tried})
        body = made.model if isinstance(made, TextEncoder | TextToText) else made.model.encoder
        told.plan["plan"] = asdict(body.config)
        if int8:
            for trial in tried:
                _quantize(part / f"{trial.graph.name}.onnx")
            told.loss.update(_loss(made, part, tried))
    return told


def _written(trial: ExampleInputs, part: Path) -> float:
    """Writes a graph and compares it; gives the largest difference.

    Raises:
        ValueError: it is above the bound.
    """
    graph = trial.graph
    path = part / f"{graph.name}.onnx"
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.module.state_dict().values())
    try:
        # a graph serves every length: it cannot choose a kernel by length
        with attention_backend("explicit"):
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
    for batch in trial.all:
        error = max(
            error, *(relative_error(found, wanted) for found, wanted in zip(*_both(graph, part, batch), strict=True))
        )
    return check(error, f"{path.name}: its outputs are")


def _both(graph: Graph, part: Path, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """What the written graph computes, and what the model does."""
    with torch.inference_mode():
        wanted = graph.module(*batch.values())
    found = run_session(open_session(part / f"{graph.name}.onnx"), dict(batch))
    return [found[name] for name in graph.outputs], list(wanted) if isinstance(wanted, tuple) else [wanted]


def _quantize(path: Path) -> None:
    """Puts a graph's products in 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    drawn = onnx.load(path)
    del drawn.graph.value_info[:]  # shapes that the quantizer, which turns matrices about, would find to be others
    apart = path.with_name(f"{path.name}.data").exists()
    place = path.with_name("8-bits")  # the quantizer would add to weights that lie beside a graph of the same name
    place.mkdir()
    quantize_dynamic(
        drawn, place / path.name, weight_type=QuantType.QInt8, per_channel=True, use_external_data_format=apart
    )
    for file in place.iterdir():
        file.replace(path.with_name(file.name))
    shutil.rmtree(place)


def _loss(made: Pipeline, part: Path, tried: Sequence[ExampleInputs]) -> dict[str, float]:
    """Of an encoder the cosine of each text's vector with that of float32; of one with a head the largest difference of
    a logit; of an encoder–decoder how many of the tokens that it writes are still the most probable after those before
    them, and how far their log-probabilities move."""
    if isinstance(made, TextToText):
        return _loss_of_tokens(part, tried, made.model.config.pad_id)
    (trial,) = tried
    pairs = [_both(trial.graph, part, batch) for batch in trial.texts]
    if isinstance(made, TextEncoder):
        return cosines(*(torch.cat([outputs[side][0] for outputs in pairs]) for side in (0, 1)))
    largest = max(float((a - b).abs().max()) for pair in pairs for a, b in zip(*pair, strict=True))
    return {"largest difference of a logit": largest}


def _loss_of_tokens(part: Path, tried: Sequence[ExampleInputs], pad: int) -> dict[str, float]:
    encoder, decoder, cached = tried
    same, changes = [], []
    for source, target, last in zip(encoder.texts, decoder.texts, cached.texts, strict=True):
        _, (logits, *_) = _both(decoder.graph, part, target)
        memory = run_session(open_session(part / "encoder_model.onnx"), dict(source))["last_hidden_state"]
        small = run_session(open_session(part / "decoder_model.onnx"), {**target, "encoder_hidden_states": memory})[
            "logits"
        ]
        written = torch.cat([target["input_ids"][:, 1:], last["input_ids"]], dim=1)
        real = written != pad
        of_each = [scores.log_softmax(-1).gather(2, written[..., None])[..., 0][real] for scores in (small, logits)]
        changes.append(of_each[0] - of_each[1])
        same.append((small.argmax(-1) == logits.argmax(-1))[real])
    kept = torch.cat(same)
    return {f"share of {len(kept)} tokens that stay the most probable": float(kept.float().mean())} | log_prob_error(
        torch.cat(changes)
    )
