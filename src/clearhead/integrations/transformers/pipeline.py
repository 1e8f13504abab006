"""Build the text pipelines of transformers 4 by the name of their task."""

import re
from pathlib import Path
from typing import Any

from clearhead.choices import check_choice, hide_keywords, refuse_unknown
from clearhead.integrations.transformers.answering import QuestionAnswering
from clearhead.integrations.transformers.base import TextPipeline
from clearhead.integrations.transformers.classification import TextClassification
from clearhead.integrations.transformers.features import FeatureExtraction
from clearhead.integrations.transformers.generation import TextToTextGeneration
from clearhead.io import hub
from clearhead.io.json import read_json
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

_ALIASES = {"sentiment-analysis": "text-classification"}
_GENERATION = ("text2text-generation", "translation", "summarization")
TASKS = ("text-classification", "question-answering", "feature-extraction", *_GENERATION)

_HINTS = dict.fromkeys(
    ("trust_remote_code", "model_kwargs", "pipeline_class", "config", "device_map", "feature_extractor"),
    "The model's folder decides",
)
_IGNORED = frozenset({"framework", "use_fast", "token"})
"""Arguments of transformers that change no result."""


@hide_keywords
def pipeline(
    task: str,
    model: str | Path,
    *,
    tokenizer: str | Path | None = None,
    device: Any = None,
    revision: str | None = None,
    dtype: Any = None,
    torch_dtype: Any = None,
    **options: Any,
) -> TextPipeline:
    """Load a model as a pipeline that takes the arguments and gives the results of transformers 4.

    Args:
        task: "text-classification" (or "sentiment-analysis"), "question-answering", "feature-extraction",
            "text2text-generation", "summarization", "translation", or "translation_en_to_de" for other languages.
        model: a folder or a Hub id.
        tokenizer: None, or the same as the model.
        device: "cpu", "cuda", a torch.device, or the number of a CUDA device; -1 is the CPU. None for "auto".
        revision: branch, tag or commit, for a Hub id.
        dtype, torch_dtype: precision of the computation: None for float32; a dtype of torch; or a name that
            `TextEncoder` takes, such as "int8".
        options: options of every call, such as top_k=None or num_beams=2.

    Returns:
        A callable. Its results are the dictionaries and lists of transformers 4.57.

    Raises:
        ValueError: an unknown task, no such model, or a model that does not have the head of the task.
        TypeError: an unknown option.

    >>> import clearhead
    >>> translate = clearhead.pipeline("translation_en_to_de", model="tatoeba-en-de")
    >>> translate("Where can I buy a ticket?")
    [{'translation_text': 'Wo kann ich ein Ticket kaufen?'}]
    """
    kind = _ALIASES.get(task, task)
    kind = "translation" if re.fullmatch(r"translation_[^_]+_to_[^_]+", kind) else kind
    check_choice("task", kind, TASKS)
    if tokenizer is not None and str(tokenizer) != str(model):
        raise ValueError(
            f"the tokenizer is that of the model's folder; got {str(tokenizer)!r:.60}. Leave tokenizer out"
        )
    named = {name: value for name, value in options.items() if name in _HINTS and value not in (None, False, {})}
    refuse_unknown("pipeline", named, (), _HINTS)
    defaults = {name: value for name, value in options.items() if name not in _IGNORED and name not in _HINTS}
    precision, place = _precision(dtype or torch_dtype), _device(device)
    folder = hub.resolve_model(model, revision)
    match kind:
        case "feature-extraction":
            return FeatureExtraction(
                kind, TextEncoder.from_pretrained(folder, precision=precision, device=place), defaults
            )
        case "text-classification":
            return TextClassification(
                kind, Reranker.from_pretrained(folder, precision=precision, device=place), defaults
            )
        case "question-answering":
            return QuestionAnswering(
                kind, QuestionAnswerer.from_folder(folder, precision=precision, device=place), defaults
            )
    prefix = read_json(folder / "config.json").get("prefix")
    generator = TextToText.from_pretrained(folder, precision=precision, device=place)
    return TextToTextGeneration(task, generator, prefix if isinstance(prefix, str) else "", defaults)


def _precision(dtype: Any) -> str:
    return "float32" if dtype is None else str(dtype).removeprefix("torch.")


def _device(device: Any) -> str:
    if device is None:
        return "auto"
    if isinstance(device, int):
        return "cpu" if device < 0 else f"cuda:{device}"
    return str(device)
