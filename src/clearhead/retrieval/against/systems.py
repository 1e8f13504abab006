"""Vectors from another system: an endpoint, an ONNX graph or a folder of sentence-transformers."""

import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from clearhead.models.heads import pool
from clearhead.retrieval.against.endpoint import vector_of_endpoint
from clearhead.runtime.onnx import OnnxGraph
from clearhead.runtime.vectors import Vectors
from clearhead.tokenizers.tokenizer import Tokenizer

VectorOf = Callable[[str], Vectors]
"""Returns the vector (d) of a text. A ValueError says why the system refused it."""


def vector_of_system(target: str, name: str | None, made_by: Mapping[str, Any]) -> VectorOf:
    """Return a function that computes the vector (d) of a text with another system.

    Args:
        target: URL of an endpoint, an ONNX graph, or a folder of sentence-transformers.
        name: name of the model at an endpoint; None for its only one.
        made_by: settings of the encoder that made the index.

    Raises:
        ValueError: the target is none of the three, or a library is missing. The function raises it for a text that the
            system refuses.
        OSError: the endpoint cannot be reached. The function raises it, too.
    """
    if target.lower().startswith(("http://", "https://")):
        return vector_of_endpoint(target, name)
    path = Path(target)
    if path.suffix == ".onnx":
        return _onnx_graph(path, made_by)
    if target and path.is_dir():
        return _sentence_transformer(path, bool(made_by["normalize"]))
    raise ValueError(
        f"{target or 'an empty name'} is none of the systems to compare: expected the URL of an endpoint, "
        "a .onnx file, or a folder of sentence-transformers"
    )


def _onnx_graph(path: Path, made_by: Mapping[str, Any]) -> VectorOf:
    graph = OnnxGraph(path)
    folder = next(
        (parent for parent in (path.parent, path.parent.parent) if (parent / "tokenizer.json").is_file()), None
    )
    if folder is None:
        raise ValueError(f"there is no tokenizer.json next to {path}; copy that of the model there")
    tokenizer = Tokenizer.from_folder(folder)

    def vector_of(text: str) -> Vectors:
        ids = torch.tensor([tokenizer.encode([text], made_by["max_length"])[0].ids])
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        outputs = graph.run({name: tensor for name, tensor in given.items() if name in graph.inputs})
        if "sentence_embedding" in outputs:
            vector = graph.check("sentence_embedding", outputs["sentence_embedding"].float(), 1, None)
        else:
            name = next((name for name, tensor in outputs.items() if tensor.ndim == 3), None)
            if name is None:
                raise ValueError(f"{path} has no output with a vector for each text or token")
            hidden = graph.check(name, outputs[name].float(), *ids.shape, None)
            vector = pool(hidden, torch.ones_like(ids, dtype=torch.bool), made_by["pooling"])
            if made_by["normalize"]:
                vector = torch.nn.functional.normalize(vector, dim=-1)
        return cast(Vectors, vector[0].numpy())

    return vector_of


def _sentence_transformer(folder: Path, normalize: bool) -> VectorOf:
    needed = "comparing a folder needs sentence-transformers 6 or later"
    try:
        version = importlib.metadata.version("sentence-transformers")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f'{needed}: pip install "sentence-transformers>=6"') from None
    if int(version.partition(".")[0]) < 6:
        raise ValueError(f"{needed}: {version}, which is installed, runs code that it finds in a folder")
    from sentence_transformers import SentenceTransformer

    def unable(error: Exception) -> ValueError:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return ValueError(f"{folder}: sentence-transformers cannot use it: {reason}")

    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    except Exception as error:  # of its libraries, without a common base class
        raise unable(error) from None

    def vector_of(text: str) -> Vectors:
        try:
            vector = model.encode([text], prompt="", normalize_embeddings=normalize, show_progress_bar=False)
            return np.asarray(vector[0], np.float32)
        except Exception as error:
            raise unable(error) from None

    return vector_of
