"""What the data of a page holds, for tests of it."""

import base64
import zlib

import numpy as np
import torch

from clearhead import TextToText
from clearhead.inspection.trace.records import Recorder
from clearhead.inspection.trace.trace import watching

TEXT = "My grandmother bakes bread every Sunday morning."


def unpacked(data, place, dtype, *shape):
    """The bytes at a place of a page's data, as an array."""
    return np.frombuffer(zlib.decompress(base64.b64decode(data["blobs"][place])), dtype=dtype).reshape(shape)


def weights(data, head):
    """A head's attention weights."""
    return unpacked(data, head["data"], np.uint8, head["rows"], head["columns"]) * (head["largest"] / 255)


class _Results(Recorder):
    def __init__(self):
        super().__init__(values=True)
        self.results = {}

    def tell(self, path, kind, result, module=None):
        super().tell(path, kind, result, module)
        self.results[path] = result[0].numpy()


def results(data):
    """The tensors of every step of a page of the shipped translator, by path."""
    made = TextToText.from_pretrained(precision="float32", device="cpu")
    teller = _Results()
    (source,) = made.tokenizer.encode([data["text"]])
    target = [made.tokenizer.token_id(token) for token in data["target"]]
    with torch.inference_mode(), watching(made.model, teller):
        made.model(torch.tensor([source.ids]), torch.tensor([target]))
    return teller.results


def hovered(page, cells):
    """What is said of each cell of a heat map, head after head."""
    return cells.evaluate(
        """cells => [...cells.querySelectorAll("canvas")].flatMap((canvas) => {
            const box = canvas.getBoundingClientRect();
            return Array.from({ length: canvas.width * canvas.height }, (_, place) => {
                const [row, column] = [Math.floor(place / canvas.width), place % canvas.width];
                canvas.dispatchEvent(new PointerEvent("pointermove", { bubbles: true,
                    clientX: box.left + ((column + 0.5) * box.width) / canvas.width,
                    clientY: box.top + ((row + 0.5) * box.height) / canvas.height }));
                return document.getElementById("tip").textContent;
            });
        })"""
    )
