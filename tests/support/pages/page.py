"""Read the data and the tooltips of a page."""

import base64
import zlib

import numpy as np
import torch

from clearhead import TextToText
from clearhead.inspection.trace.records import Recorder
from clearhead.inspection.trace.trace import recording

TEXT = "My grandmother bakes bread every Sunday morning."


def unpacked(data, index, dtype, *shape):
    """Return a blob of a page as an array."""
    return np.frombuffer(zlib.decompress(base64.b64decode(data["blobs"][index])), dtype=dtype).reshape(shape)


def weights(data, head):
    """Return the attention weights of a head."""
    return unpacked(data, head["data"], np.uint8, head["rows"], head["columns"]) * (head["largest"] / 255)


class _ResultRecorder(Recorder):
    def __init__(self):
        super().__init__(values=True)
        self.results = {}

    def record(self, path, operation, result, module=None):
        super().record(path, operation, result, module)
        self.results[path] = result[0].numpy()


def results(data):
    """Run the default translator as on a page, and return the result of every step by path."""
    pipeline = TextToText.from_pretrained(precision="float32", device="cpu")
    recorder = _ResultRecorder()
    (source,) = pipeline.tokenizer.encode([data["text"]])
    target = [pipeline.tokenizer.token_id(token) for token in data["target"]]
    with torch.inference_mode(), recording(pipeline.model, recorder):
        pipeline.model(torch.tensor([source.ids]), torch.tensor([target]))
    return recorder.results


def tooltips(page, cells):
    """Return the tooltip of each cell of a heat map, head by head."""
    return cells.evaluate(
        """cells => [...cells.querySelectorAll("canvas")].flatMap((canvas) => {
            const box = canvas.getBoundingClientRect();
            return Array.from({ length: canvas.width * canvas.height }, (_, index) => {
                const [row, column] = [Math.floor(index / canvas.width), index % canvas.width];
                canvas.dispatchEvent(new PointerEvent("pointermove", { bubbles: true,
                    clientX: box.left + ((column + 0.5) * box.width) / canvas.width,
                    clientY: box.top + ((row + 0.5) * box.height) / canvas.height }));
                return document.getElementById("tip").textContent;
            });
        })"""
    )
