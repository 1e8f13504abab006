"""Evaluate a text encoder with mteb, which is imported on request only."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from clearhead.pipelines.encoding.comparison import VectorComparison

if TYPE_CHECKING:
    from mteb.models import ModelMeta


def model_metadata(encoder: VectorComparison) -> "ModelMeta":
    """Return mteb's description of an encoder.

    mteb caches results by name and revision. The revision is a hash of the weights, the settings and the precision.
    """
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    described: dict[str, Any] = {
        "name": f"clearhead/{Path(encoder.name).name}",
        "revision": _fingerprint(encoder),
        "n_parameters": sum(parameter.numel() for parameter in encoder.model.parameters()),
        "max_tokens": encoder.settings.max_length,
        "embed_dim": encoder.model.config.d_model,
        "similarity_fn_name": ScoringFunction.COSINE,
        "framework": ["PyTorch"],
    }
    return ModelMeta.create_empty(overwrites=described)


def encode_batches(
    encoder: VectorComparison,
    batches: Iterable[Mapping[str, Any]],
    *,
    task_metadata: Any,
    prompt_type: Any = None,
    hf_split: str = "",
    hf_subset: str = "",
    **options: Any,
) -> NDArray[Any]:
    """Encode the texts of mteb's batches, with the prompt that mteb chooses for the task.

    Args:
        encoder: the encoder.
        batches: objects with a list of texts under "text".
        task_metadata: description of the task.
        prompt_type: query, document, or None.
        hf_split, hf_subset: not used.
        options: keywords of `TextEncoder.encode`.
    """
    from mteb.models.abs_encoder import get_prompt_name

    texts = [text for batch in batches for text in batch["text"]]
    name = get_prompt_name(dict(encoder.settings.prompts), task_metadata, prompt_type)
    kind = getattr(prompt_type, "value", prompt_type)
    encode = {"query": encoder.encode_query, "document": encoder.encode_document}.get(kind, encoder.encode)
    vectors: NDArray[Any] = encode(texts, prompt_name=name, **options)
    return vectors


def _fingerprint(encoder: VectorComparison) -> str:
    settings = encoder.settings
    described = (encoder.precision.name, {**vars(settings), "prompts": sorted(settings.prompts.items())})
    digest = hashlib.sha256(repr(described).encode())
    for name, tensor in sorted(encoder.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
