"""Open a checkpoint with the pipeline of its type."""

from pathlib import Path

from clearhead.checkpoints import checkpoint_type
from clearhead.io import hub
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

Pipeline = TextEncoder | TextToText | TextClassifier | Reranker | QuestionAnswerer


def load_pipeline(model: str | Path, *, precision: str = "float32", device: str = "cpu") -> Pipeline:
    """Load a checkpoint with the pipeline of its type.

    Args:
        model: a folder or a Hub id.
        precision, device: as in `TextEncoder`.

    Raises:
        ValueError: no such model, or one that is not supported.

    >>> type(load_pipeline("tatoeba-en-de")).__name__
    'TextToText'
    """
    folder = hub.resolve_model(model)
    match checkpoint_type(folder):
        case "seq2seq":
            return TextToText.from_pretrained(folder, precision=precision, device=device)
        case "classification":
            return TextClassifier.from_pretrained(folder, precision=precision, device=device)
        case "reranking":
            return Reranker.from_pretrained(folder, precision=precision, device=device)
        case "span":
            return QuestionAnswerer.from_folder(folder, precision=precision, device=device)
        case "encoder":
            return TextEncoder.from_pretrained(folder, precision=precision, device=device)


def load_without_head(model: str | Path) -> TextEncoder | TextToText:
    """Load a checkpoint in float32 on the CPU, without the head of an encoder, to inspect it.

    Args:
        model: a folder or a Hub id.

    Raises:
        ValueError: no such model, or one that is not supported.
    """
    pipeline = TextToText if checkpoint_type(hub.resolve_model(model)) == "seq2seq" else TextEncoder
    return pipeline.from_pretrained(model, precision="float32", device="cpu")


def load_to_inspect(model: str | Path) -> TextEncoder | TextToText | TextClassifier:
    """Load a checkpoint as `load_without_head`, except that a classifier keeps its head.

    Args:
        model: a folder or a Hub id.

    Raises:
        ValueError: no such model, or one that is not supported.
    """
    if checkpoint_type(hub.resolve_model(model)) == "classification":
        return TextClassifier.from_pretrained(model, precision="float32", device="cpu")
    return load_without_head(model)
