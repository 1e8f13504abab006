"""Write a folder with a web page, ONNX Runtime Web, graphs, weights and tokenizer, for any web server."""

import base64
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.export.example_inputs import generate_greedily
from clearhead.export.graphs import Graph
from clearhead.export.onnx import check_libraries, graph_program
from clearhead.export.output import ExportReport, export_folder
from clearhead.export.parity import suppress_warnings
from clearhead.export.sample_texts import TEXTS, non_empty_texts
from clearhead.export.web import comparison, graphs
from clearhead.export.web.lesson import describe_lesson
from clearhead.export.web.page_files import LESSON, RUNTIMES, page_files, repository
from clearhead.export.web.tokenizer import web_tokenizer
from clearhead.export.web.weights import FILE, MAX_MEGABYTES, WeightsFile
from clearhead.generation.strategy import resolve_eos_ids
from clearhead.io.atomic import error_path
from clearhead.io.json import read_json, write_json
from clearhead.pipelines.auto import load_pipeline
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.runtime.onnx import MANIFEST

if TYPE_CHECKING:
    from onnx import ModelProto

MODEL_FOLDER = "model"
"""Folder of the model's files."""

DISK_FOLDER = "disk"
"""Folder with copies as scripts: a page that is opened from the disk may not read other files."""


def export_web(
    model: str | Path, folder: str | Path, *, int8: bool = False, texts: Sequence[str] = TEXTS
) -> ExportReport:
    """Export a model as a static web page: the model runs in the visitor's browser.

    The folder works on any web server and without a network connection. `index.html` can also be opened from the disk.

    Args:
        model: a folder or a Hub id: an encoder–decoder, or a text encoder.
        folder: the output folder.
        int8: store matrices in 8 bits, with one scale for each row. The browser computes in float32.
        texts: graphs and model are compared in float32 on these texts.

    Raises:
        ValueError: the model does not exist, is too large for a browser, has a tokenizer or a head that the page does
            not support, or its graphs compute other outputs; nothing is written then. Also the errors of
            `export_folder`.
    """
    check_libraries()
    static = page_files()
    texts = non_empty_texts(texts)
    with export_folder(model, folder, "web") as (output, report), suppress_warnings():
        pipeline = load_pipeline(model)
        if not isinstance(pipeline, TextToText | TextEncoder):
            raise ValueError(f"{model} has a head; a web page supports encoder–decoders and text encoders")
        _check_size(pipeline, int8=int8)
        own_graphs, description = _describe(pipeline)
        (output / MODEL_FOLDER).mkdir()
        write_json(output / MODEL_FOLDER / "tokenizer.json", web_tokenizer(pipeline.tokenizer))
        weights = _write_graphs(own_graphs, output / MODEL_FOLDER, int8=int8)
        write_json(
            output / MODEL_FOLDER / "model.json",
            {
                "format": 1,
                "name": _name(model),
                "repository": repository(),
                **description,
                "weights": weights.manifest(),
            },
        )
        for path in static:
            if path.name not in LESSON or description.get("lesson"):
                with error_path(output / path.name):  # the error of a full disk names the source
                    shutil.copy(path, output / path.name)
        with tempfile.TemporaryDirectory() as temporary:
            copies = Path(temporary, MODEL_FOLDER)
            shutil.copytree(output / MODEL_FOLDER, copies)
            weights.write_expanded(copies)
            comparison.compare(own_graphs, copies, _pairs(pipeline, texts), report, int8=int8)
        _write_scripts(output)
    return report


def is_web_export(folder: str | Path) -> bool:
    """Return whether a folder was written by `export_web`."""
    manifest = Path(folder).expanduser() / MANIFEST
    return manifest.is_file() and read_json(manifest).get("format") == "web"


def _name(model: str | Path) -> str:
    return Path(model).name or str(model)


def _check_size(pipeline: TextToText | TextEncoder, *, int8: bool) -> None:
    """Raise a ValueError for a model whose weights are too large for a web page."""
    elements = sum(parameter.numel() for parameter in pipeline.model.parameters())
    megabytes = elements * (1 if int8 else 2) / 1e6  # at least, for float16
    if megabytes > MAX_MEGABYTES:
        fix = "Use a smaller model" if int8 or elements / 1e6 > MAX_MEGABYTES else "--int8 stores them in 8 bits"
        raise ValueError(
            f"the weights have {megabytes:.0f} MB or more; a web page takes at most {MAX_MEGABYTES} MB. {fix}"
        )


def _strip(model: "ModelProto") -> None:
    """Remove what only a reader of the graph needs, which is half of its size."""
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    for part in (*model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output):
        part.ClearField("doc_string")
        del part.metadata_props[:]


def _pairs(pipeline: TextToText | TextEncoder, texts: Sequence[str]) -> list[comparison.Pair]:
    """Return the source ids of texts, and the ids of their greedy outputs with the start token."""
    if isinstance(pipeline, TextEncoder):
        return [(tokens.ids, ()) for tokens in pipeline.tokenize(texts)]
    sources = [pipeline.prepare(text)[1].source for text in texts]
    outputs = generate_greedily(pipeline, texts)
    return [
        (source.ids, [*source.decoder_prefix, *output.token_ids])
        for source, output in zip(sources, outputs, strict=True)
    ]


def _describe(pipeline: TextToText | TextEncoder) -> tuple[list[Graph], dict[str, Any]]:
    """Return the graphs of a model and its description for the page."""
    if isinstance(pipeline, TextEncoder):
        settings = pipeline.settings
        if settings.prompt_text(None) and not settings.pool_prompt:
            raise ValueError("this model excludes its prompt from pooling, which a web page does not support")
        encoder = graphs.encoder_graph(pipeline.model, settings.pooling, settings.normalize)
        limit = min(filter(None, (settings.max_length, pipeline.model.config.max_len)))
        description = {"kind": "encoder", "prompt": settings.prompt_text(None), "max_length": limit}
        sizes = {"encoder": {"layers": pipeline.model.config.num_layers, "heads": pipeline.model.config.num_heads}}
        return [encoder], description | {"sizes": sizes}
    config, prepared = pipeline.prepare("a")
    prefix, sizes_of = prepared.source.decoder_prefix, pipeline.model.config
    generation = asdict(config) | {
        "max_length": config.max_target_length(len(prefix), sizes_of.max_len),
        "eos_ids": list(resolve_eos_ids(pipeline.model, config)),
        "min_length": config.min_target_length(len(prefix)),
        "prefix": list(prefix),
    }
    decoder = pipeline.model.decoder
    description = {
        "kind": "translator",
        "prompt": pipeline.prompts.prefix,
        "max_length": pipeline.max_length,
        "generation": generation,
        "sizes": {
            "encoder": {"layers": sizes_of.num_layers, "heads": sizes_of.num_heads},
            "decoder": {"layers": len(decoder.layers), "heads": decoder.num_heads},
            "vocabulary": sizes_of.target_vocab_size or sizes_of.vocab_size,
        },
        "lesson": describe_lesson(pipeline.model),
    }
    return graphs.seq2seq_graphs(pipeline.model), description


def _write_graphs(own_graphs: Sequence[Graph], folder: Path, *, int8: bool) -> WeightsFile:
    """Write the graphs without their weights, and the weights.

    Raises:
        ValueError: the weights are too large.
    """
    weights = WeightsFile(int8=int8)
    for graph in own_graphs:
        model = graph_program(graph).model_proto
        weights.take(model)
        _strip(model)
        (folder / f"{graph.name}.onnx").write_bytes(model.SerializeToString())
    stored = weights.stored()
    if len(stored) > MAX_MEGABYTES * 1e6:
        fix = "Use a smaller model" if int8 else "--int8 stores them in 8 bits"
        size = len(stored) / 1e6
        raise ValueError(f"the weights have {size:.0f} MB; a web page takes at most {MAX_MEGABYTES} MB. {fix}")
    (folder / FILE).write_bytes(stored)
    return weights


def _write_scripts(output: Path) -> None:
    """Write the files that a page loads as scripts in base64, for a page that is opened from the disk."""
    (output / DISK_FOLDER).mkdir()
    for path in [*sorted((output / MODEL_FOLDER).iterdir()), *(output / name for name in RUNTIMES)]:
        code = base64.b64encode(path.read_bytes()).decode()
        (output / DISK_FOLDER / f"{path.name}.js").write_text(f'clearheadFile("{path.name}", "{code}");', "utf-8")
