"""What is exported: a model in a folder or on the Hub, with its head."""

from pathlib import Path

from clearhead import checkpoints
from clearhead.checkpoints import directory
from clearhead.run.answers import QuestionAnswerer
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.run.tasks import TextClassifier

Model = TextEncoder | TextToText | TextClassifier | QuestionAnswerer


def loaded(model: str | Path) -> Model:
    """The model in a folder or on the Hub, with its head, in float32 on the CPU: what formats are written from."""
    place = directory.find(model)
    if checkpoints.is_seq2seq(place):
        return TextToText.from_pretrained(place, precision="float32", device="cpu")
    head = checkpoints.head_in(place)
    if head == "classification":
        return TextClassifier.from_pretrained(place, precision="float32", device="cpu")
    if head == "span":
        return QuestionAnswerer.from_pretrained(place, precision="float32", device="cpu")
    return TextEncoder.from_pretrained(place, precision="float32", device="cpu")
