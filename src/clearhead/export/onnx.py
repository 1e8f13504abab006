"""Export models to ONNX, and compare the files with the model in ONNX Runtime before they appear."""

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from clearhead.export import example_inputs
from clearhead.export.example_inputs import Batch, ExampleInputs
from clearhead.export.graphs import Graph
from clearhead.export.output import ExportReport, export_folder
from clearhead.export.parity import check_bound, cosine_loss, log_prob_error, relative_error, suppress_warnings
from clearhead.export.sample_texts import TEXTS, non_empty_texts
from clearhead.kernels.attention import attention_backend
from clearhead.pipelines.auto import Pipeline, load_pipeline
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.onnx import OnnxGraph

_OPSET = 18
_MAX_EMBEDDED_BYTES = 1_800_000_000
"""Maximum bytes of weights inside a graph file: a protocol buffer holds at most 2 GiB."""


def export(model: str | Path, folder: str | Path, *, int8: bool = False, texts: Sequence[str] = TEXTS) -> ExportReport:
    """Export a model to ONNX: an encoder as one graph, an encoder–decoder as three.

    Batch size and lengths are dynamic. Files, inputs and outputs are named as Optimum names them.

    Args:
        model: a folder, or a Hub id.
        folder: the output folder; it also receives the tokenizer, config.json and generation_config.json.
        int8: quantize all matmuls to 8 bits, with static weight scales and dynamic activation scales. The quality loss
            is measured on the texts.
        texts: graph and model are compared in float32 on these texts, and on a row of the maximum length.

    Raises:
        ValueError: the model does not exist, cannot be exported, or its graph computes other outputs; nothing is
            written then. Also the errors of `export_folder`.
    """
    check_libraries()
    texts = non_empty_texts(texts)
    with export_folder(model, folder, "onnx") as (output, report), suppress_warnings():
        pipeline = load_pipeline(model)
        if isinstance(pipeline, TextEncoder) and pipeline.settings.prompts and not pipeline.settings.pool_prompt:
            raise ValueError(
                "this model excludes its prompts from pooling (include_prompt=false); ONNX export cannot do that"
            )
        pipeline.save_pretrained(output)
        for weights in output.glob("*.safetensors*"):
            weights.unlink()  # the graphs hold the weights
        examples = example_inputs.example_inputs(pipeline, texts)
        report.error.update({f"{example.graph.name}.onnx": _write_and_compare(example, output) for example in examples})
        encoder = pipeline.model if isinstance(pipeline, TextEncoder | TextToText) else pipeline.model.encoder
        report.metadata["plan"] = asdict(encoder.config)
        if int8:
            for example in examples:
                _quantize(output / f"{example.graph.name}.onnx")
            report.loss.update(_quantization_loss(pipeline, output, examples))
    return report


def _write_and_compare(example: ExampleInputs, output: Path) -> float:
    """Write a graph, compare it with the model and return the largest relative error.

    Raises:
        ValueError: the graph cannot be exported, or the error exceeds the bound.
    """
    graph = example.graph
    path = output / f"{graph.name}.onnx"
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.module.state_dict().values())
    graph_program(graph).save(str(path), external_data=size > _MAX_EMBEDDED_BYTES)
    error = 0.0
    for batch in example.batches:
        error = max(
            error,
            *(
                relative_error(result, expected)
                for result, expected in zip(*_run_both(graph, output, batch), strict=True)
            ),
        )
    return check_bound(error, f"{path.name}: its outputs are")


def graph_program(graph: Graph) -> torch.onnx.ONNXProgram:
    """Return a graph in ONNX.

    Raises:
        ValueError: the graph cannot be exported.
    """
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
                dynamic_shapes=graph.dynamic_shapes(),
            )
    except torch.onnx.OnnxExporterError as problem:
        reason = str(problem.__cause__ or problem).strip().splitlines()[0]
        raise ValueError(f"{graph.name}.onnx: this model cannot be exported as a graph: {reason}") from None
    assert program is not None
    return program


def check_libraries() -> None:
    """Raise a ValueError if a library for the export to ONNX is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f'exporting to ONNX needs {name}: pip install "clearhead[export]"')


def _run_both(graph: Graph, output: Path, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs of the written graph and of the model."""
    with torch.inference_mode():
        expected = graph.module(*batch.values())
    results = OnnxGraph(output / f"{graph.name}.onnx").run(batch)
    return [results[name] for name in graph.outputs], list(expected) if isinstance(expected, tuple) else [expected]


def _quantize(path: Path) -> None:
    """Quantize the matmuls of a graph to 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph_model = onnx.load(path)
    del graph_model.graph.value_info[:]  # the quantizer transposes matrices, which contradicts recorded shapes
    weights = path.with_name(f"{path.name}.data")
    has_external_data = weights.exists()
    weights.unlink(missing_ok=True)  # the quantizer would append to it
    quantize_dynamic(
        graph_model,
        path,
        weight_type=QuantType.QInt8,
        per_channel=True,
        use_external_data_format=has_external_data,
    )


def _quantization_loss(pipeline: Pipeline, output: Path, examples: Sequence[ExampleInputs]) -> dict[str, float]:
    """Return the quality loss of quantization.

    For an encoder: cosines with the float32 vectors. For an encoder with a head: the largest difference of a logit. For
    an encoder–decoder: the share of generated tokens that stay the most probable, and the change of log-probability.
    """
    if isinstance(pipeline, TextToText):
        return _token_loss(output, examples, pipeline.model.config.pad_id)
    (example,) = examples
    pairs = [_run_both(example.graph, output, batch) for batch in example.texts]
    if isinstance(pipeline, TextEncoder):
        return cosine_loss(*(torch.cat([outputs[side][0] for outputs in pairs]) for side in (0, 1)))
    largest = max(float((a - b).abs().max()) for pair in pairs for a, b in zip(*pair, strict=True))
    return {"largest difference of a logit": largest}


def _token_loss(output: Path, examples: Sequence[ExampleInputs], pad: int) -> dict[str, float]:
    encoder, decoder, cached = examples
    unchanged, differences = [], []
    for source, target, last in zip(encoder.texts, decoder.texts, cached.texts, strict=True):
        _, (logits, *_) = _run_both(decoder.graph, output, target)
        memory = OnnxGraph(output / "encoder_model.onnx").run(source)["last_hidden_state"]
        quantized = OnnxGraph(output / "decoder_model.onnx").run({**target, "encoder_hidden_states": memory})["logits"]
        tokens = torch.cat([target["input_ids"][:, 1:], last["input_ids"]], dim=1)
        real = tokens != pad
        log_probs = [
            scores.log_softmax(-1).gather(2, tokens[..., None])[..., 0][real] for scores in (quantized, logits)
        ]
        differences.append(log_probs[0] - log_probs[1])
        unchanged.append((quantized.argmax(-1) == logits.argmax(-1))[real])
    matches = torch.cat(unchanged)
    return {
        f"share of {len(matches)} tokens that stay the most probable": float(matches.float().mean())
    } | log_prob_error(torch.cat(differences))
