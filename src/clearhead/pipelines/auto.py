"""What is exported: a model in a folder or on the Hub, with its head."""

from pathlib import Path

from clearhead import checkpoints
from clearhead.io import hub
from clearhead.pipelines.question_answerer import QuestionAnswerer
from clearhead.pipelines.text_classifier import TextClassifier
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText

Model = TextEncoder | TextToText | TextClassifier | QuestionAnswerer


def load(model: str | Path) -> Model:
    """The model in a folder or on the Hub, with its head, in float32 on the CPU: what formats are written from."""
    place = hub.resolve_model(model)
    if checkpoints.is_seq2seq(place):
        return TextToText.from_pretrained(place, precision="float32", device="cpu")
    head = checkpoints.head_type(place)
    if head == "classification":
        return TextClassifier.from_pretrained(place, precision="float32", device="cpu")
    if head == "span":
        return QuestionAnswerer.from_pretrained(place, precision="float32", device="cpu")
    return TextEncoder.from_pretrained(place, precision="float32", device="cpu")
